"""What a run leaves for TensorBoard: scalars, images, and a histogram of whatever a layer has."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers_summaries import observed, read, written
from helpers_train import final_weights, local_run, tiny_dataset
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from raysweep.data.dataset import Dataset
from raysweep.data.samples import Samples
from raysweep.plugins import build_model
from raysweep.train.evaluate import example_images


def pixels(events: EventAccumulator, tag: str, at: int = -1) -> Any:
    return np.asarray(Image.open(io.BytesIO(events.Images(tag)[at].encoded_image_string)))


def test_scalars_are_the_rows_at_their_global_steps(tmp_path: Path) -> None:
    _, rows = local_run(observed(train__epochs=3), tiny_dataset(20), tmp_path)
    events = read(tmp_path)
    assert set(events.Tags()["scalars"]) == {"train_loss", "val_loss", "psnr", "lr", "grad_norm", "samples_per_second"}
    for tag in events.Tags()["scalars"]:
        assert [event.step for event in events.Scalars(tag)] == [3, 6, 9]
        assert [event.value for event in events.Scalars(tag)] == pytest.approx([row[tag] for row in rows], rel=1e-6)


def test_six_outputs_each_epoch_and_their_x_and_y_once(tmp_path: Path) -> None:
    experiment = observed(data__noise=0.1)
    dataset = tiny_dataset(20, 8, separate_target=True)
    local_run(experiment, dataset, tmp_path)
    events = read(tmp_path)
    assert sorted(events.Tags()["images"]) == sorted(f"image_{n}/{kind}" for n in range(6) for kind in ("x", "y", "output"))
    for n in range(6):
        assert [event.step for event in events.Images(f"image_{n}/output")] == [3, 6]
        assert [event.step for event in events.Images(f"image_{n}/x")] == [0]
        assert [event.step for event in events.Images(f"image_{n}/y")] == [0]
    model = build_model(experiment.model, (8, 8, 1), (8, 8, 1), 0)
    model.load_state_dict(final_weights(tmp_path))
    for kind, images in example_images(model, dataset, experiment).items():
        for n, image in enumerate(images):
            shown = np.round(image.clip(0, 1) * 255)
            assert np.abs(pixels(events, f"image_{n}/{kind}")[..., 0] - shown[..., 0]).max() <= 1


def test_fewer_validation_images_than_six_are_all_shown(tmp_path: Path) -> None:
    events = written(tmp_path, nn.Conv2d(1, 1, 1), tiny_dataset(20, 2))
    assert sorted(events.Tags()["images"]) == [f"image_{n}/{kind}" for n in range(2) for kind in ("output", "x", "y")]


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (4, 1)])
def test_images_of_any_number_of_channels_are_clipped_and_shown(tmp_path: Path, channels: int, shown: int) -> None:
    x = np.random.default_rng(0).random((9, 4, 6, channels), dtype=np.float32) * 3 - 1
    dataset = Dataset(Samples(x, x), np.arange(2), np.arange(2, 9), "floats")
    picture = pixels(written(tmp_path, nn.Conv2d(channels, channels, 1), dataset), "image_5/x")
    assert picture.shape == (4, 6, 3)
    expected = np.round(x[8].clip(0, 1) * 255)[..., :shown]
    np.testing.assert_array_equal(picture, np.broadcast_to(expected, picture.shape))


def test_every_layer_has_histograms_of_weights_biases_and_activations(tmp_path: Path) -> None:
    # Outputs of convolutions are overwritten by the activations after them: relu works in place.
    local_run(
        observed(model__depth=2, model__norm="group", model__dropout=0.2, model__output="sigmoid"), tiny_dataset(20), tmp_path
    )
    events = read(tmp_path)
    layers = [f"{side}.{block}.{part}" for side in ("encoder", "decoder") for block in (0, 1) for part in (0, 1)] + ["head"]
    activations = [f"{side}.{block}.2" for side in ("encoder", "decoder") for block in (0, 1)] + ["output"]
    # No bias in front of a normalisation.
    tags = [f"{layer}/weight" for layer in layers] + [f"{layer}/bias" for layer in layers if not layer.endswith(".0")]
    tags += [f"{layer}/activation" for layer in layers + activations]
    assert sorted(events.Tags()["histograms"]) == sorted(tags)
    assert all([event.step for event in events.Histograms(tag)] == [3, 6] for tag in tags)
    for block in (0, 1):
        assert events.Histograms(f"encoder.{block}.1/activation")[-1].histogram_value.min < 0, "not overwritten by relu"
        assert events.Histograms(f"encoder.{block}.2/activation")[-1].histogram_value.min == 0
    weight = final_weights(tmp_path)["head.weight"].double()
    value = events.Histograms("head/weight")[-1].histogram_value
    assert (value.min, value.max, value.num) == (float(weight.min()), float(weight.max()), weight.numel())
    assert (value.sum, value.sum_squares) == pytest.approx((float(weight.sum()), float((weight**2).sum())))
    assert sum(value.bucket) == weight.numel()
    middle = value.bucket_limit[31]
    assert sum(value.bucket[:32]) == int((weight < middle).sum())
    assert events.Histograms("output/activation")[-1].histogram_value.num == 5 * 8 * 8


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0], [5.0], [-3e38, 3e38], [1e30, 1e30], [1e-45, 2e-45], [1.0, 1.0 + 2**-23]],
    ids=["constant", "one", "range above float32", "huge", "tiny", "neighbours"],
)
def test_any_finite_values_make_a_histogram(tmp_path: Path, values: list[float]) -> None:
    model = nn.Conv2d(1, 1, 1)
    model.extra = nn.Parameter(torch.tensor(values))
    value = written(tmp_path, model).Histograms("model/extra")[0].histogram_value
    assert (value.min, value.max, value.num) == (min(model.extra.tolist()), max(model.extra.tolist()), len(values))
    assert sum(value.bucket) == len(values)
    assert list(value.bucket_limit) == sorted(value.bucket_limit)
    assert value.bucket_limit[-1] == pytest.approx(value.max)

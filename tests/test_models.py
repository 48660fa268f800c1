"""The autoencoder family: its sizes, shapes, first weights and dropout, and what it refuses before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.models import Autoencoder, Shape, check_depth, count_parameters, largest_depth
from raysweep.plugins import build_model
from raysweep.settings import ModelConfig

SIZES = st.integers(2, 40)
CHANNELS = st.sampled_from([1, 2, 3])


def config(**settings: Any) -> ModelConfig:
    return ModelConfig.model_validate(settings)


def tiny(**settings: Any) -> ModelConfig:
    return config(**{"base_channels": 2, "max_channels": 4, **settings})


def gray(height: int, width: int) -> Shape:
    return height, width, 1


def outputs(model: nn.Module, modules: list[nn.Module], x: Tensor) -> list[Tensor]:
    """What each of the modules gives when the model is run on x."""
    kept: list[Tensor] = []
    hooks = [module.register_forward_hook(lambda _m, _i, output: kept.append(output.clone())) for module in modules]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return kept


def blocks(model: Autoencoder) -> list[nn.Module]:
    return [*model.encoder, *model.decoder, model.head]


# The network of the question.

QUESTION = {"encoder": [64, 128, 256, 512, 512, 512, 512, 512], "decoder": [512, 512, 512, 512, 512, 256, 128, 64]}


@pytest.mark.parametrize(("channels", "parameters"), [(1, 24_337_409), (3, 24_338_561)])
def test_the_reference_has_the_parameters_of_the_questions_network(channels: int, parameters: int) -> None:
    widths = [*QUESTION["encoder"], *QUESTION["decoder"], 1]
    by_hand = sum((9 * before + 1) * after for before, after in zip([channels, *widths], widths, strict=False))
    assert by_hand == parameters
    with torch.device("meta"):
        model = build_model(config(preset="reference"), (256, 256, channels), (256, 256, 1), seed=0)
    assert count_parameters(model) == parameters


def test_the_reference_has_the_shapes_of_the_questions_network() -> None:
    with torch.device("meta"):
        model = Autoencoder(config(preset="reference"), 3, 1)
        found = outputs(model, blocks(model), torch.empty(1, 3, 256, 256))
    sides = [256 // 2**i for i in range(8)]
    expected = [*zip(QUESTION["encoder"], sides, strict=True), *zip(QUESTION["decoder"], reversed(sides), strict=True), (1, 256)]
    assert [(f.shape[1], f.shape[2], f.shape[3]) for f in found] == [(width, side, side) for width, side in expected]


def test_the_reference_starts_from_the_questions_weights() -> None:
    model = build_model(config(preset="reference", max_channels=128), (256, 256, 1), (256, 256, 1), seed=0)
    for name, values in model.named_parameters():
        if name.endswith("bias"):
            assert torch.all(values == 0.1), name
    weights = torch.cat([values.detach().flatten() for name, values in model.named_parameters() if name.endswith("weight")])
    assert weights.abs().max() <= 0.2
    assert weights.abs().max() > 0.195
    # A normal distribution of std 0.1 cut at two standard deviations has a standard deviation of 0.0880.
    assert float(weights.std()) == pytest.approx(0.0880, abs=0.0005)
    assert abs(float(weights.mean())) < 0.0005


# Sizes.


@given(SIZES, SIZES, st.integers(1, 6), CHANNELS, CHANNELS, st.booleans(), st.data())
def test_the_output_is_exactly_as_large_as_the_target(
    height: int, width: int, depth: int, x_channels: int, y_channels: int, skip: bool, data: st.DataObject
) -> None:
    settings = {
        "depth": min(depth, largest_depth(height, width)),
        "skip": skip,
        "norm": data.draw(st.sampled_from(["none", "group", "batch"])),
        "activation": data.draw(st.sampled_from(["relu", "leaky_relu", "elu", "gelu", "silu"])),
        "output": data.draw(st.sampled_from(["linear", "sigmoid", "relu"])),
        "kernel_size": data.draw(st.sampled_from([1, 3, 5, 7])),
        "dropout": data.draw(st.sampled_from([0.0, 0.3])),
        "base_channels": data.draw(st.integers(1, 4)),
    }
    model = build_model(tiny(**settings), (height, width, x_channels), (height, width, y_channels), seed=0)
    output = model(torch.rand(2, x_channels, height, width))
    assert output.shape == (2, y_channels, height, width)
    output.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_depth_10_fits_the_smallest_image_that_carries_it() -> None:
    model = build_model(tiny(depth=10, base_channels=1, max_channels=1), gray(513, 600), gray(513, 600), seed=0)
    with torch.no_grad():
        assert model(torch.rand(1, 1, 513, 600)).shape == (1, 1, 513, 600)


@given(SIZES, SIZES, st.integers(1, 6))
@example(33, 47, 5)
def test_the_crop_is_taken_where_the_padding_was_put(height: int, width: int, depth: int) -> None:
    depth = min(depth, largest_depth(height, width))
    model = Autoencoder(tiny(depth=depth), 1, 1)
    model.encoder, model.decoder = nn.ModuleList([nn.Identity()] * depth), nn.ModuleList([nn.Identity()] * depth)
    model.pool, model.head = nn.Identity(), nn.Identity()  # type: ignore[assignment]
    x = torch.rand(1, 1, height, width)
    (padded,) = outputs(model, [model.head], x)
    assert torch.equal(model(x), x)
    for side, full in ((height, padded.shape[2]), (width, padded.shape[3])):
        assert full % 2**depth == 0
        assert full - side < 2**depth
    # The padding repeats the edge, as much of it before the image as behind it (one less where it is odd).
    top, left = (padded.shape[2] - height) // 2, (padded.shape[3] - width) // 2
    assert torch.equal(padded[..., : top + 1, left : left + width], x[..., :1, :].expand(1, 1, top + 1, width))
    assert torch.equal(padded[..., top : top + height, : left + 1], x[..., :1].expand(1, 1, height, left + 1))


@pytest.mark.parametrize(
    ("height", "width", "depth"),
    [
        (32, 32, 5),
        (28, 28, 5),
        (8, 8, 3),
        (33, 33, 6),
        (1, 1, 0),
        (2, 2, 1),
        (64, 8, 3),
        (8, 64, 3),
        (1024, 1024, 10),
        (5000, 5000, 10),
    ],
)
def test_the_largest_depth_of_an_image(height: int, width: int, depth: int) -> None:
    assert largest_depth(height, width) == depth


def test_a_depth_too_large_is_refused_with_the_largest_that_fits() -> None:
    check_depth(config(depth=5), gray(28, 32), gray(28, 32))
    expected = r"model\.depth: images of 28x32 carry at most depth 5, got 6; set model\.depth to at most 5"
    with pytest.raises(ConfigError, match=expected):
        build_model(config(depth=6), gray(28, 32), gray(28, 32), seed=0)


def test_an_output_that_cannot_be_compared_with_y_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"as large as X \(32x32\), but Y is 16x32; resize one of them \(data\.size\)"):
        build_model(config(), gray(32, 32), gray(16, 32), seed=0)
    with pytest.raises(ConfigError, match=r"model\.in_channels: the images have 1, got 3"):
        build_model(config(in_channels=3), gray(32, 32), gray(32, 32), seed=0)
    with pytest.raises(ConfigError, match=r"model\.out_channels: the images have 3, got 1"):
        build_model(config(out_channels=1), gray(32, 32), (32, 32, 3), seed=0)
    build_model(config(in_channels=1, out_channels=3), gray(32, 32), (32, 32, 3), seed=0)


# First weights and values.


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "elu", "gelu", "silu"])
@pytest.mark.parametrize("skip", [False, True])
def test_he_weights_keep_the_scale_of_the_activations_through_depth_5(activation: str, skip: bool) -> None:
    model = build_model(config(depth=5, activation=activation, skip=skip), (64, 64, 3), (64, 64, 3), seed=0)
    x = torch.rand(8, 3, 64, 64)
    scales = [float(output.pow(2).mean().sqrt()) for output in outputs(model, blocks(model), x)]  # type: ignore[arg-type]
    assert min(scales) > 0.1
    assert max(scales) < 3


@pytest.mark.parametrize(
    ("output", "inside"),
    [
        ("linear", lambda v: bool((v < 0).any() and (v > 1).any())),
        ("sigmoid", lambda v: bool((v > 0).all() and (v < 1).all())),
        ("relu", lambda v: bool((v >= 0).all() and (v == 0).any() and (v > 1).any())),
    ],
)
def test_the_output_ranges_over_what_its_kind_says(output: str, inside: Callable[[Tensor], bool]) -> None:
    model = build_model(tiny(output=output, depth=1), gray(16, 16), gray(16, 16), seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        values = model(2 * torch.randn(8, 1, 16, 16))
    assert inside(values)


def test_the_first_weights_follow_from_the_seed_alone() -> None:
    def weights(seed: int) -> Tensor:
        model = build_model(tiny(), gray(8, 8), gray(8, 8), seed)
        return torch.cat([values.detach().flatten() for values in model.parameters()])

    torch.manual_seed(1)
    first, state = weights(5), torch.random.get_rng_state()
    torch.rand(7)
    assert torch.equal(weights(5), first)
    assert not torch.equal(weights(6), first)
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_channels_last_images_give_the_same_output() -> None:
    model = build_model(tiny(depth=2, norm="group", skip=True), (19, 22, 3), (19, 22, 3), seed=0)
    x = torch.rand(4, 3, 19, 22)
    with torch.no_grad():
        contiguous = model(x)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), contiguous)


def test_the_weights_have_plain_names() -> None:
    names = set(build_model(tiny(depth=2), gray(8, 8), gray(8, 8), seed=0).state_dict())
    assert {"encoder.0.0.weight", "decoder.1.0.bias", "head.weight"} <= names
    assert not any("module." in name for name in names)

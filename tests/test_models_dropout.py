"""SampleDropout: a mask follows from its sample's key, whatever batch, place or order the sample comes in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raysweep.models import Autoencoder, SampleDropout, set_sample_keys
from raysweep.settings import ModelConfig

KEYS = torch.tensor([2**62 + 12_345, -7, 0, 91, 2**40], dtype=torch.int64)


def dropped(probability: float, keys: Tensor | None, shape: tuple[int, ...] = (8, 4, 4)) -> Tensor:
    """What is left of ones, [B, *shape]."""
    layer = SampleDropout(probability)
    layer.keys = keys
    kept: Tensor = layer(torch.ones(len(keys) if keys is not None else 5, *shape))
    return kept


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_rate_and_the_mean_are_right(probability: float) -> None:
    values = dropped(probability, torch.arange(100, dtype=torch.int64) * 2**41 + 17, (16, 8, 8))
    assert float((values == 0).float().mean()) == pytest.approx(probability, abs=0.005)
    assert float(values.mean()) == pytest.approx(1, abs=0.02 / (1 - probability))
    kept = values[values != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
    for dimension in (0, 1):  # no sample and no channel has a rate of its own
        others = [d for d in range(4) if d != dimension]
        assert (values == 0).float().mean(dim=others).sub(probability).abs().max() < 0.08


def test_a_mask_follows_from_its_key_alone() -> None:
    together = dropped(0.5, KEYS)
    for row, key in enumerate(KEYS):
        assert torch.equal(dropped(0.5, key[None])[0], together[row])
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(dropped(0.5, KEYS[order]), together[order])
    torch.manual_seed(1)
    assert torch.equal(dropped(0.5, KEYS), together)


def test_other_keys_have_other_masks() -> None:
    # Neighbouring keys, too: half of all values agree by chance.
    masks = dropped(0.5, torch.arange(50, dtype=torch.int64), (4096,)) != 0
    agreement = (masks[:, None] == masks[None]).float().mean(dim=2)
    agreement.fill_diagonal_(0.5)
    assert agreement.sub(0.5).abs().max() < 0.06


def test_layers_of_one_model_have_masks_of_their_own() -> None:
    model = nn.Sequential(SampleDropout(0.5), nn.Identity(), SampleDropout(0.5))
    ones = torch.ones(5, 4096)
    set_sample_keys(model, KEYS)
    first, second = model[0](ones), model[2](ones)
    assert float((first == second).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert torch.equal(model[2](ones), second)
    set_sample_keys(model, None)
    assert model[0].keys is None
    assert model[2].keys is None


def test_evaluation_and_rate_0_leave_the_values_alone() -> None:
    layer = SampleDropout(0.5)
    layer.keys = KEYS
    x = torch.rand(5, 8, 4, 4)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(dropped(0.0, KEYS), torch.ones(5, 8, 4, 4))


def test_without_keys_it_is_torchs_dropout() -> None:
    torch.manual_seed(3)
    values = dropped(0.5, None)
    torch.manual_seed(3)
    assert torch.equal(values, nn.functional.dropout(torch.ones(5, 8, 4, 4), 0.5))


def test_gradients_pass_through_the_kept_values() -> None:
    layer = SampleDropout(0.25)
    layer.keys = KEYS
    x = torch.rand(5, 8, 4, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, dropped(0.25, KEYS))


def test_the_autoencoder_drops_in_its_bottleneck_in_training_only() -> None:
    torch.manual_seed(0)
    model = Autoencoder(ModelConfig(depth=2, base_channels=4, dropout=0.5), 1, 1)
    x = torch.rand(5, 1, 8, 8)
    set_sample_keys(model, KEYS)
    seen: list[Tensor] = []
    model.dropout.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    first, again = model(x), model(x)
    assert seen[0].shape == (5, 8, 2, 2)
    assert torch.equal(first, again)
    set_sample_keys(model, KEYS + 1)
    assert not torch.equal(model(x), first)
    model.eval()
    assert torch.equal(model(x), model(x.clone()))
    assert not torch.equal(model(x), first)


@pytest.mark.parametrize("probability", [-0.1, 1.0, 1.5])
def test_a_rate_that_is_none_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match=r"at least 0 and below 1, got"):
        SampleDropout(probability)

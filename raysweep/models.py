"""The convolutional autoencoder family: any depth, any image size, the output exactly as large as the input.

The user's own networks are loaded by plugins.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysweep.errors import ConfigError
from raysweep.settings import ModelConfig

Shape = tuple[int, int, int]
"""Height, width, channels of one image."""

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "leaky_relu": lambda: nn.LeakyReLU(0.1, inplace=True),
    "elu": lambda: nn.ELU(inplace=True),
    "gelu": nn.GELU,
    "silu": lambda: nn.SiLU(inplace=True),
}
_OUTPUTS: dict[str, Callable[[], nn.Module]] = {"linear": nn.Identity, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


def largest_depth(height: int, width: int) -> int:
    """The largest depth that an image carries: ceil(log2(shorter side)), at most 10.

    The padded side is a multiple of 2^depth; one block more, and more than half of it would be padding.
    """
    return min(10, max(0, math.ceil(math.log2(min(height, width)))))


def check_depth(config: ModelConfig, x_shape: Shape, y_shape: Shape) -> None:
    """Refuse an autoencoder that these images cannot carry.

    Raises:
        ConfigError: the depth is too large (with the largest that fits), Y has another size than X, or the channels
            that were set are not those of the images.
    """
    if config.factory:
        return
    height, width, channels = x_shape
    fits = largest_depth(height, width)
    if config.depth > fits:
        raise ConfigError(
            f"model.depth: images of {height}x{width} carry at most depth {fits}, got {config.depth}; "
            f"set model.depth to at most {fits}, or use larger images"
        )
    if x_shape[:2] != y_shape[:2]:
        raise ConfigError(
            f"the autoencoder's output is as large as X ({height}x{width}), but Y is {y_shape[0]}x{y_shape[1]}; "
            "resize one of them (data.size), or bring your own model (model.factory)"
        )
    for name, value, actual in (("in_channels", config.in_channels, channels), ("out_channels", config.out_channels, y_shape[2])):
        if value is not None and value != actual:
            raise ConfigError(f"model.{name}: the images have {actual}, got {value}; leave it out to take it from the data")


class SampleDropout(nn.Module):
    """Dropout whose mask is a function of each sample's key, not of where and with whom the sample is processed.

    Before each forward pass in training the loop sets `keys`, int64 [B], made from (seed, epoch, sample). Without keys
    it is torch's dropout. The bits are SplitMix64 of key + position (Steele et al., 2014, "Fast splittable pseudorandom
    number generators").

    Raises:
        ValueError: the probability is below 0, or 1 and above.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"a dropout probability must be at least 0 and below 1, got {probability}")
        self.probability = probability
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Zero values of x [B, ...] with `probability` and scale the others by 1 / (1 - probability)."""
        if not self.training or self.probability == 0:
            return x
        if self.keys is None:
            return F.dropout(x, self.probability)
        position = torch.arange(x[0].numel(), device=x.device, dtype=torch.int64)
        bits = _splitmix(self.keys.to(x.device)[:, None] ^ (position * _GOLDEN)[None, :])
        uniform = (bits >> 11 & 0xFFFFFF).to(torch.float32) / 2**24
        kept = (uniform >= self.probability).view_as(x)
        return x * kept / (1 - self.probability)


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64


def _splitmix(z: Tensor) -> Tensor:
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685  # 0x94D049BB133111EB
    return z ^ (z >> 31 & 0x1FFFFFFFF)


def set_sample_keys(model: nn.Module, keys: Tensor | None) -> None:
    """Give every SampleDropout of a model the keys (int64 [B]) of the samples that come next, each layer keys of its own."""
    for number, layer in enumerate(m for m in model.modules() if isinstance(m, SampleDropout)):
        # With the same keys, layers of the same size would drop the same positions.
        layer.keys = keys if keys is None or number == 0 else _splitmix(keys + number)


def _norm(kind: str, channels: int) -> list[nn.Module]:
    if kind == "group":
        # Up to 8 groups of at least two channels: a group of one could not tell a channel's level.
        groups = next(g for g in (8, 4, 2, 1) if channels % g == 0 and (channels // g >= 2 or g == 1))
        return [nn.GroupNorm(groups, channels)]
    return [nn.BatchNorm2d(channels)] if kind == "batch" else []


class Autoencoder(nn.Module):
    """Encoder: blocks of convolution, activation, max-pool 2. Decoder: transposed convolutions of stride 2, mirrored.

    The input is padded to a multiple of 2^depth by repeating its edge, the output cropped to the input's size.

    Args:
        config: depth, channels, kernel, normalisation, activation, output, skip connections, first weights.
        in_channels: channels of X.
        out_channels: channels of the output.
    """

    def __init__(self, config: ModelConfig, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.depth, self.skip = config.depth, config.skip
        kernel, activation = config.kernel_size, _ACTIVATIONS[config.activation]
        # A normalisation takes a bias out again; its gradient would be rounding alone, which Adam blows up to full steps.
        bias = config.norm == "none"
        widths = [min(config.base_channels * 2**i, config.max_channels) for i in range(config.depth)]
        self.encoder = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, width, kernel, padding=kernel // 2, bias=bias), *_norm(config.norm, width), activation()
            )
            for before, width in zip([in_channels, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.dropout = SampleDropout(config.dropout)
        doubled = 2 if config.skip else 1
        befores = [widths[-1], *(width * doubled for width in reversed(widths[1:]))]
        self.decoder = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(before, width, kernel, stride=2, padding=kernel // 2, output_padding=1, bias=bias),
                *_norm(config.norm, width),
                activation(),
            )
            for before, width in zip(befores, reversed(widths), strict=True)
        )
        self.head = nn.Conv2d(widths[0] * doubled, out_channels, kernel, padding=kernel // 2)
        self.output = _OUTPUTS[config.output]()
        self._init_weights(config)

    def _init_weights(self, config: ModelConfig) -> None:
        for module in self.modules():
            if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                continue
            if config.init == "reference":
                nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0.1)
                continue
            # He et al. (2015), eq. 10; of a transposed convolution's kernel one in stride^2 taps meets an input.
            taps = config.kernel_size**2 / (4 if isinstance(module, nn.ConvTranspose2d) else 1)
            gain = 1.0 if module is self.head and config.output != "relu" else 2.0
            nn.init.normal_(module.weight, std=math.sqrt(gain / (module.in_channels * max(taps, 1.0))))
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_channels, H, W] -> [B, out_channels, H, W]."""
        height, width = x.shape[-2:]
        unit = 2**self.depth
        bottom, right = -height % unit, -width % unit
        top, left = bottom // 2, right // 2
        if bottom or right:
            x = F.pad(x, (left, right - left, top, bottom - top), mode="replicate")
        features: list[Tensor] = []
        for block in self.encoder:
            x = block(x)
            features.append(x)
            x = self.pool(x)
        x = self.dropout(x)
        for block, same_size in zip_longest(self.decoder, reversed(features) if self.skip else []):
            x = block(x)
            if same_size is not None:
                x = torch.cat([x, same_size], dim=1)
        x = self.output(self.head(x))
        return x[..., top : top + height, left : left + width] if bottom or right else x


def uses_batch_norm(model: nn.Module) -> bool:
    """Whether a model normalises over the batch, so that its result depends on how a batch is split."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def count_parameters(model: nn.Module) -> int:
    """Trainable values of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)

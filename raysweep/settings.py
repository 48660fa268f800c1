"""Every setting of a run, section by section: its type, its default and its meaning. How they fit together is experiment.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, model_validator
from typing_extensions import Self


class Section(BaseModel):
    """A frozen part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    @classmethod
    def dependent_defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults that follow from what was given; a section that has such settings overrides this."""
        return {}

    @model_validator(mode="wrap")
    @classmethod
    def _fill(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, Mapping):
            return handler(value)
        filled = {k: v for k, v in cls.dependent_defaults(value).items() if value.get(k) is None}
        section = handler({**value, **filled})
        # A filled-in value must not look given: an override of what it follows from fills it in anew.
        section.__pydantic_fields_set__.difference_update(filled)
        return section


PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Section):
    """The network: the autoencoder family, or the user's own factory."""

    preset: Literal["autoencoder", "reference"] = "autoencoder"
    """`reference`: depth 8, 64 to 512 channels, truncated-normal weights; each can still be set."""
    factory: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """`package.module:function` that returns the user's own torch.nn.Module, called with `params`."""
    params: dict[str, Any] = {}
    """Keyword arguments for `factory`."""
    depth: Annotated[int, Field(ge=1, le=10)] = 2
    """Encoder blocks (3x3 convolution, activation, max-pool 2) and as many decoder blocks."""
    base_channels: PositiveInt = 16
    """Channels of the first block; each further block doubles them."""
    max_channels: PositiveInt = 512
    """No block has more channels than this."""
    in_channels: PositiveInt | None = None
    """Channels of X; taken from the data when null."""
    out_channels: PositiveInt | None = None
    """Channels of the output; taken from the data's Y when null."""
    kernel_size: Annotated[int, Field(ge=1, le=15)] = 3
    """Side of every convolution's kernel, odd."""
    dropout: Fraction = 0.0
    """Probability of zeroing a bottleneck value in training; a function of (seed, epoch, sample)."""
    norm: Literal["none", "group", "batch"] = "none"
    """Normalisation after each convolution but the last. `batch` depends on how a batch is split."""
    activation: Literal["relu", "leaky_relu", "elu", "gelu", "silu"] = "relu"
    output: Literal["linear", "sigmoid", "relu"] = "linear"
    """What the last convolution goes through."""
    skip: bool = False
    """Concatenate each encoder block's features to the decoder block of the same size."""
    init: Literal["he", "reference"] = "he"
    """`he`: normal, std sqrt(2 / fan_in). `reference`: truncated normal, std 0.1, biases 0.1."""

    @classmethod
    def dependent_defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("preset") != "reference":
            return {}
        return {"depth": 8, "base_channels": 64, "max_channels": 512, "init": "reference"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"model.kernel_size must be odd, so that a convolution keeps the size, got {self.kernel_size}")
        if self.max_channels < self.base_channels:
            raise ValueError(
                f"model.max_channels must be at least model.base_channels, got {self.max_channels} < {self.base_channels}"
            )
        if self.params and not self.factory:
            raise ValueError("model.params needs model.factory, the function that they are passed to")
        return self


class DataConfig(Section):
    """The images: X in, Y expected."""

    source: Literal["photos", "digits", "arrays", "idx", "folder"] = "photos"
    """`photos`, `digits`: built in. `arrays`: .npy or .npz. `idx`: Fashion-MNIST's format. `folder`: image files."""
    path: str | None = None
    """arrays: X.npy, or an .npz with x and optionally y; idx: the images file; folder: the folder of X."""
    target_path: str | None = None
    """Y: a .npy, an IDX file or a folder (paired by file stem). Without it Y is X before the noise."""
    count: PositiveInt | None = None
    """Use only so many samples, drawn by `seed`."""
    patch: Annotated[int, Field(ge=4, le=80)] = 32
    """photos: side of the square patches, pixels."""
    size: tuple[PositiveInt, PositiveInt] | None = None
    """folder: resize every image to [height, width], pixels; without it all must have one size."""
    channels: Literal["gray", "rgb"] | None = None
    """folder, photos: convert every image; null keeps them as they are, and all must agree."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the normal noise added to X, where 1 is the range of a pixel. photos: 0.1."""
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the samples kept for validation."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Decides the split and the validation noise; train.seed does not, so that trials compare."""

    @classmethod
    def dependent_defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"noise": 0.1} if given.get("source", "photos") == "photos" else {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        needs_path = self.source in ("arrays", "idx", "folder")
        if needs_path and not self.path:
            raise ValueError(f"data.source {self.source} needs data.path")
        if not needs_path and (self.path or self.target_path):
            raise ValueError(f"data.source {self.source} is built in; data.path and data.target_path go with arrays, idx, folder")
        if self.size and self.source != "folder":
            raise ValueError(f"data.size resizes image files (source folder), got source {self.source}")
        if self.channels and self.source not in ("folder", "photos"):
            raise ValueError(f"data.channels converts images of the sources folder and photos, got source {self.source}")
        return self


class OptimConfig(Section):
    """The optimizer. Nothing ever scales `lr` by the number of workers: the global batch is the contract."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: PositiveFloat = 1e-3
    """Learning rate at the end of the warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """adam, sgd: added to the gradient; adamw: decoupled."""
    momentum: Fraction = 0.0
    """sgd only."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """adam, adamw only."""
    eps: PositiveFloat = 1e-8
    """adam, adamw only."""
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the rate rises linearly from lr / warmup_steps to lr."""
    schedule_epochs: PositiveInt | None = None
    """cosine: the epoch at which the rate has reached min_lr; train.epochs when null."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """cosine: the rate at the end."""
    clip_norm: PositiveFloat | None = None
    """Scale the gradient down to this norm where it is larger."""


class TrainConfig(Section):
    """The loop."""

    epochs: PositiveInt = 8
    """The budget. It is no part of a trial's key: a longer run of the same trial goes on from its checkpoint."""
    batch_size: PositiveInt = 64
    """The global batch: samples per step over all workers, whatever their number."""
    micro_batch: PositiveInt | None = None
    """Samples that one worker holds at once; a larger share is accumulated. null: the whole share."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Decides the first weights, the order, the noise and the dropout."""
    reduction: Literal["mean", "sum"] = "mean"
    """The loss whose gradient is taken: squared error averaged over all values of the batch, or summed over its samples."""
    precision: Literal["auto", "off", "bf16"] = "auto"
    """Mixed precision; auto: bf16 on a GPU that has it, else off."""
    channels_last: bool = True
    """Keep images as [B, H, W, C] in memory, which convolutions run faster on."""
    compile: bool = False
    """torch.compile the model; slower on CPU."""
    patience: PositiveInt | None = None
    """Stop after so many epochs without a lower val_loss."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """How much lower counts, for `patience`."""
    checkpoint_every_epochs: PositiveInt | None = None
    """null: at every epoch's end at which a checkpoint costs at most 1 % of the time since the last one. And at the run's end."""
    checkpoint_every_s: PositiveFloat | None = 30.0
    """Also inside an epoch, after so many seconds without a checkpoint; null: only at epoch ends."""
    ledger: bool = False
    """Each worker writes down which samples it trained on in each step; `python -m raysweep.train.ledger DIR` checks them."""
    tensorboard: bool = False
    """Write loss, images and histograms of weights, biases and activations for TensorBoard."""
    exactness: Literal["ddp", "bitwise"] = "ddp"
    """What the number of workers may change: `ddp`: the rounding of sums; `bitwise`: not one bit of weights and losses."""
    shards: Annotated[int, Field(ge=1, le=64)] = 8
    """bitwise: parts that each global batch is cut into, a power of two; as many workers at most."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shards & (self.shards - 1):
            raise ValueError(
                f"train.shards must be a power of two from 1 to 64, the leaves of the tree that gradients are summed in, "
                f"got {self.shards}"
            )
        if self.exactness == "bitwise" and self.micro_batch is not None:
            raise ValueError(
                f"train.micro_batch goes with train.exactness ddp, got {self.micro_batch}: in bitwise a shard is what a worker "
                "holds at once; leave it out, and for less memory raise train.shards"
            )
        if self.exactness == "bitwise" and self.compile:
            raise ValueError(
                "train.compile goes with train.exactness ddp: which kernels it picks depends on the batches that came before"
            )
        return self


def _workers(value: Any) -> Any:
    """A number of workers, or (min, max) from [min, max] or "min:max"."""
    given: Any = [int(n) for n in value.split(":")] if isinstance(value, str) and re.fullmatch(r"\d+(:\d+)?", value) else value
    numbers = list(given) if isinstance(given, list | tuple) else [given]
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
    if not whole or len(numbers) not in (1, 2) or not 1 <= numbers[0] <= numbers[-1]:
        raise ValueError(f"must be a number of workers, at least 1, or [min, max] with 1 <= min <= max; got {value!r}")
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


Workers = Annotated[int | tuple[int, int], BeforeValidator(_workers)]


def _in_rays_steps(value: float) -> float:
    if abs(value * 10_000 - round(value * 10_000)) > 1e-6:
        raise ValueError(f"Ray counts parts of a GPU in steps of 0.0001; got {value:g}, set {int(value * 10_000) / 10_000:g}")
    return value


PartOfGpu = Annotated[float, Field(ge=1e-4, le=1), AfterValidator(_in_rays_steps)]


class ScaleConfig(Section):
    """Workers and what each holds. It changes the clock and nothing else, so it is no part of a trial's key."""

    workers: Workers = 1
    """A number, or [min, max] (also min:max): a run starts with all that are free, grows, and goes on with fewer."""
    use_gpu: Literal["auto", True, False] = "auto"
    """auto: one GPU per worker where there are enough GPUs for the (smallest) number of workers, else CPU."""
    gpus_per_worker: PartOfGpu = 1.0
    """Below 1 several one-worker trials (or runs) share a GPU: 0.25 puts four on each, 0.3 three. Nothing limits the GPU memory
    that each takes: a trial that takes more than its part can end the others."""
    cpus_per_worker: PositiveInt | None = None
    """CPUs reserved for a worker, and its torch threads. null: train shares all among the workers, a sweep gives 1."""
    max_failures: Annotated[int, Field(ge=0)] = 3
    """How many lost workers in a row, without a newer checkpoint in between, a run gets over."""
    max_preemptions: Annotated[int, Field(ge=0)] | None = None
    """How often a machine may be taken back with notice in a whole run; null: any number."""
    resize_check_s: PositiveFloat = 10.0
    """[min, max]: how often to look for free workers; two looks in a row must find the same before a run grows."""
    start_timeout_s: PositiveFloat = 600.0
    """How long to wait for the (smallest) number of workers: machines that an autoscaler starts, or that replace lost ones."""
    collective_timeout_s: PositiveInt = 600
    """How long workers wait for each other before the silent one counts as lost."""
    poll_s: PositiveFloat = 0.1
    """Ray Train: how often the controller looks at the workers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus_per_worker < 1 and self.max_workers > 1:
            raise ValueError(
                f"scale.gpus_per_worker {self.gpus_per_worker:g} goes with one worker, scale.workers allows {self.max_workers}: "
                "NCCL refuses two workers of a run on one GPU (Duplicate GPU detected); set one of the two to 1"
            )
        if self.gpus_per_worker < 1 and self.use_gpu is False:
            raise ValueError(
                f"scale.gpus_per_worker {self.gpus_per_worker:g} with scale.use_gpu false: no GPU is used; leave one of them out"
            )
        return self

    @property
    def min_workers(self) -> int:
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def max_workers(self) -> int:
        return self.workers if isinstance(self.workers, int) else self.workers[1]

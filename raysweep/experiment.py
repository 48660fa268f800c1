"""One training run, typed: model, data, optimizer, training, scale; what of it the results follow from.

The sections' settings are written down in settings.py, the sweep around it in config.py; reading files is yamlfile.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, model_validator
from typing_extensions import Self

from raysweep.errors import ConfigError
from raysweep.settings import DataConfig, ModelConfig, OptimConfig, ScaleConfig, Section, TrainConfig
from raysweep.yamlfile import config_error, merge, parse_set, read_mapping


class Experiment(Section):
    """One training run.

    Raises:
        ConfigError: from `from_file`, `from_dict` and `with_overrides`; lists every mistake with its key.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig.model_validate({})
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    scale: ScaleConfig = ScaleConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        horizon = self.optim.schedule_epochs
        if horizon is not None and self.optim.schedule != "cosine":
            raise ValueError(f"optim.schedule_epochs goes with optim.schedule cosine, got {self.optim.schedule}")
        if self.train.batch_size < self.scale.max_workers:
            raise ValueError(
                f"train.batch_size must be at least scale.workers, or some workers never get a sample; "
                f"got {self.train.batch_size} < {self.scale.max_workers}"
            )
        if self.train.exactness == "bitwise":
            self._check_bitwise()
        return self

    def _check_bitwise(self) -> None:
        if self.model.norm == "batch":
            raise ValueError(
                "model.norm batch goes with train.exactness ddp: in bitwise its statistics would go over one shard of the batch; "
                "set model.norm to group"
            )
        if self.scale.max_workers > self.train.shards:
            raise ValueError(
                f"scale.workers may be at most train.shards in bitwise, or some workers would have no shard; "
                f"got {self.scale.max_workers} > {self.train.shards}"
            )

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], origin: str = "experiment") -> Self:
        """A checked experiment from a nested mapping; `origin` opens the error message."""
        return validated(cls, tree, origin)

    @classmethod
    def from_file(cls, path: str | Path | None, sets: list[str] | None = None) -> Self:
        """A checked experiment from a YAML file (None: all defaults) and `key=value` overrides."""
        tree = read_mapping(Path(path)) if path else {}
        if "space" in tree:
            raise ConfigError(f"{path} holds a sweep, not an experiment: run it with raysweep.tune")
        return validated(cls, merge(tree, parse_set(sets or [])), str(path or "experiment"))

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """A copy with dotted keys set, checked anew as a whole."""
        return validated(type(self), merge(self.model_dump(exclude_unset=True), overrides), "experiment")

    def get(self, dotted: str) -> Any:
        """The value of a dotted key, `optim.lr`; None for a `model.params` entry that is not set."""
        value: Any = self
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
        return value

    def identity(self) -> dict[str, Any]:
        """What the results follow from, for a trial's key: no budget, no scale, no paths, nothing that only observes.

        Settings at their defaults are left out, so that a setting added by a later release changes no key.
        """
        # Section by section: a section that equals the experiment's default one may still hold a default that follows
        # from another setting, such as the noise of photos.
        tree = {
            name: getattr(self, name).model_dump(mode="json", exclude_defaults=True, exclude=OPERATIONAL.get(name))
            for name in ("model", "data", "optim", "train")
        }
        if self.train.exactness == "ddp":
            tree["train"].pop("shards", None)
        if self.optim.schedule == "cosine":
            tree["optim"]["schedule_epochs"] = self.optim.schedule_epochs or self.train.epochs
        if self.model.factory:
            tree["model"] = {"factory": self.model.factory, "params": self.model.params}
        return {section: settings for section, settings in tree.items() if settings}


OPERATIONAL = {
    "data": {"path", "target_path"},
    "model": {"preset"},
    "train": {
        "epochs", "channels_last", "compile", "micro_batch",
        "checkpoint_every_epochs", "checkpoint_every_s", "ledger", "tensorboard",
    },
}  # fmt: skip
"""Settings that change where, how fast, how long or under which name a model is trained, but not what it learns."""


def difference(before: Experiment, now: Experiment, varied: Collection[str] = ()) -> str:
    """The first setting by which the results of two experiments differ, as `optim.lr differs (0.001, now 0.01)`, or "".

    Args:
        before, now: the experiments.
        varied: dotted keys that may differ.
    """
    old, new = (dict(_flat(experiment.identity())) for experiment in (before, now))
    for key in sorted({*old, *new} - set(varied)):
        if old.get(key) != new.get(key):
            return f"{key} differs ({old.get(key, 'its default')}, now {new.get(key, 'its default')})"
    return ""


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


T = TypeVar("T", bound=Section)


def validated(cls: type[T], tree: Mapping[str, Any], origin: str) -> T:
    """`cls` made from a nested mapping.

    Raises:
        ConfigError: lists every mistake with its dotted key.
    """
    try:
        return cls.model_validate(dict(tree))
    except ValidationError as error:
        raise config_error(error, cls, origin) from None

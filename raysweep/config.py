"""The whole configuration: Experiment (one run) and Sweep (many); YAML in, JSON schema out.

The experiment's own settings are written down in settings.py and offered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from raysweep.errors import ConfigError
from raysweep.experiment import OPERATIONAL, Experiment, validated
from raysweep.settings import DataConfig, ModelConfig, OptimConfig, PositiveFloat, PositiveInt, ScaleConfig, Section, TrainConfig
from raysweep.space import Domain, DomainField
from raysweep.yamlfile import merge, parse_set, read_mapping, unknown_key, valid_names

__all__ = [
    "Budget", "DataConfig", "Experiment", "ModelConfig", "Objective", "OptimConfig", "ScaleConfig",
    "SchedulerConfig", "SearchConfig", "Sweep", "TrainConfig", "default_sweep_path",
]  # fmt: skip


RESULT_COLUMNS = (
    "trial", "key", "status", "epochs", "best_epoch", "val_loss", "train_loss", "psnr", "seconds", "samples_per_second",
    "data_wait", "peak_memory_bytes", "parameters", "world_size", "attempts", "reason", "error", "checkpoint",
)  # fmt: skip
"""The columns of a results table beside the swept settings; a setting of such a name keeps its whole dotted key."""


class SearchConfig(Section):
    """How the space is walked."""

    algorithm: Literal["grid", "random", "sobol", "tpe", "gp", "cmaes"] = "grid"
    """grid: every combination. random: distinct draws. sobol: draws that fill the space evenly. Optuna's, which learn: tpe
    (tree-structured Parzen estimator), gp (Gaussian process), cmaes (covariance matrix adaptation; ranges only)."""
    num_samples: PositiveInt | None = None
    """The number of trials, 16 when null; not for grid. `grid` domains count as `choice` for the others."""
    start_with: list[dict[str, Any]] = []
    """Points to try first, each with a value for every setting of the space."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The same seed gives the same list of trials (those that learn: with one trial at a time)."""
    max_concurrent: PositiveInt | None = None
    """Run at most so many trials at once; null: as many as the resources carry."""


class SchedulerConfig(Section):
    """Which trials are stopped early; decided on the epoch."""

    name: Literal["none", "asha", "median"] = "none"
    grace_period: PositiveInt = 1
    """Epochs that every trial gets before it can be stopped."""
    reduction_factor: Annotated[float, Field(gt=1)] = 3
    """asha: one in so many goes on past each rung."""
    min_samples: PositiveInt = 3
    """median: trials that must have reached an epoch before one is stopped there."""


class Objective(Section):
    """What "best" means: the best finite value over a trial's epochs."""

    metric: Literal["val_loss", "train_loss", "psnr"] = "val_loss"
    mode: Literal["min", "max"] = "min"
    """psnr: max; the losses: min."""

    @classmethod
    def dependent_defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"mode": "max" if given.get("metric") == "psnr" else "min"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.metric == "psnr") != (self.mode == "max"):
            raise ValueError(f"objective.mode {self.mode} would look for the worst {self.metric}")
        return self


class Budget(Section):
    """What the whole sweep may use."""

    wall_time_s: PositiveFloat | None = None
    """Stop after so many seconds; what has not ended by then ends as `budget`, and goes on with the next start."""
    device_hours: PositiveFloat | None = None
    """Stop when the trials' epochs have taken so many hours, times their workers, over all starts of the sweep."""
    target: float | None = None
    """Stop when the objective has reached this value."""


class Sweep(Section):
    """Many trials of one experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "sweep"
    """The name of the sweep's directory below `storage`."""
    experiment: Experiment = Experiment()
    space: dict[str, DomainField] = {}
    """Dotted keys of the experiment and the values each may take."""
    search: SearchConfig = SearchConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    objective: Objective = Objective()
    budget: Budget = Budget()
    storage: str = "results"
    """The directory that sweeps are kept in; on several machines it must be a shared one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.space:
            raise ValueError("space: names no setting, so there is nothing to sweep; for one run use raysweep train")
        mistakes: list[str] = []
        for key, domain in self.space.items():
            mistakes += self._mistakes_in(key, domain)
        if self.search.algorithm == "grid":
            endless = [key for key, domain in self.space.items() if domain.values() is None]
            mistakes += [
                f"space.{key}: grid needs listed values; use {{grid: [...]}}, or search.algorithm random" for key in endless
            ]
            if self.search.num_samples is not None:
                mistakes.append("search.num_samples goes with the other searches; grid runs every combination once")
        mistakes += self._mistakes_in_start()
        epochs, grace = self.experiment.train.epochs, self.scheduler.grace_period
        if self.scheduler.name != "none" and grace >= epochs:
            mistakes.append(f"scheduler.grace_period {grace} of {epochs} epochs: no trial could ever be stopped; lower it")
        if mistakes:
            raise ValueError("\n  ".join(mistakes))
        return self

    def _mistakes_in_start(self) -> list[str]:
        mistakes = []
        for number, point in enumerate(self.search.start_with):
            where = f"search.start_with.{number}"
            missing, unknown = sorted(set(self.space) - set(point)), sorted(set(point) - set(self.space))
            if missing or unknown:
                what = [*(f"{key} is missing" for key in missing), *(f"{key} is not in the space" for key in unknown)]
                mistakes.append(f"{where}: {', '.join(what)}")
                continue
            try:
                self.experiment.with_overrides(point)
            except ConfigError as error:
                mistakes.append(f"{where}: {'; '.join(line.strip() for line in str(error).splitlines()[1:])}")
        return mistakes

    def _mistakes_in(self, key: str, domain: Domain) -> list[str]:
        *parents, last = key.split(".")
        names = valid_names(Experiment, parents)
        if parents[:2] != ["model", "params"] and last not in names:
            return [unknown_key(f"space.{key}", names or list(Experiment.model_fields))]
        operational = parents[:1] == ["scale"] or (parents == ["train"] and last in OPERATIONAL["train"])
        if operational or [*parents, last] in (["data", "path"], ["data", "target_path"]):
            if key == "train.epochs":
                return [f"space.{key}: a trial keeps its best epoch, so one long trial holds all shorter ones; set {key} instead"]
            return [
                f"space.{key}: it does not change what is learned from the same images; trials would differ in the clock only"
            ]
        mistakes = []
        for value in domain.probes():
            try:
                self.experiment.with_overrides({key: value})
            except ConfigError as error:
                lines = str(error).splitlines()
                text = "; ".join(s.strip() for s in lines[1:] or lines)
                hint = "; use {randint: [low, high]} or {choice: [...]} for whole numbers" if "valid integer" in text else ""
                mistakes.append(f"space.{key}: {value!r}: {text}{hint}")
        return mistakes

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], origin: str = "sweep") -> Self:
        """A checked sweep from a nested mapping.

        Raises:
            ConfigError: lists every mistake with its key.
        """
        return validated(cls, tree, origin)

    @classmethod
    def from_file(cls, path: str | Path | None = None, sets: list[str] | None = None) -> Self:
        """A checked sweep from a YAML file (None: the packaged default) and `key=value` overrides.

        An override of a section of the experiment may leave out `experiment.`: `optim.lr=1e-3`.

        Raises:
            ConfigError: lists every mistake with its key.
        """
        source = Path(path) if path else default_sweep_path()
        overrides = {
            f"experiment.{key}" if key.partition(".")[0] in Experiment.model_fields else key: value
            for key, value in parse_set(sets or []).items()
        }
        space = {k.removeprefix("space."): v for k, v in overrides.items() if k.startswith("space.")}
        content = read_mapping(source)
        if path and content and not set(content) - set(Experiment.model_fields):
            raise ConfigError(
                f"{path} holds an experiment, not a sweep: put it under `experiment:` beside a `space:`, or train it"
            )
        tree: dict[str, Any] = merge(content, {k: v for k, v in overrides.items() if not k.startswith("space.")})
        if not isinstance(tree.get("space") or {}, Mapping):
            raise ConfigError(f"{source}: space must map settings to domains, got {tree['space']!r}")
        if space:
            tree["space"] = {**(tree.get("space") or {}), **space}
        fixed = [k for k in overrides if k.removeprefix("experiment.") in (tree.get("space") or {})]
        if fixed:
            raise ConfigError(
                f"--set {fixed[0]}: the sweep's space varies it; set space.{fixed[0].removeprefix('experiment.')} instead"
            )
        return validated(cls, tree, str(source.name if path is None else path))

    def short_names(self) -> dict[str, str]:
        """For each key of the space its name as a column: `lr` for `optim.lr`; the whole key where names would clash."""
        last = [key.rpartition(".")[2] for key in self.space]
        clear = {name for name in last if last.count(name) == 1 and name not in RESULT_COLUMNS}
        return {key: name if name in clear else key for key, name in zip(self.space, last, strict=True)}


def default_sweep_path() -> Path:
    """The packaged default sweep: in an installed package beside this file, in a checkout in sweeps/."""
    packaged = Path(__file__).parent / "sweeps" / "lr_depth.yaml"
    return packaged if packaged.exists() else Path(__file__).parents[1] / "sweeps" / "lr_depth.yaml"

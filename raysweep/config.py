"""The whole configuration: Experiment (one run) and Sweep (many); YAML in, JSON schema out.

The settings are written down in settings.py and sweep_settings.py, and offered here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from raysweep.conditions import Rules, unknown_setting
from raysweep.errors import ConfigError
from raysweep.experiment import OPERATIONAL, Experiment, validated
from raysweep.population import population_mistakes
from raysweep.settings import DataConfig, ModelConfig, OptimConfig, ScaleConfig, Section, TrainConfig
from raysweep.space import KINDS, Domain, DomainField
from raysweep.sweep_settings import INDEPENDENT_RULES, MAX_TRIALS, SEED, Budget, Objective, SchedulerConfig, SearchConfig
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


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def _named(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"letters, digits and . _ -, at most 64, the first a letter or a digit; got {name!r}")
    return name


class Sweep(Section):
    """Many trials of one experiment."""

    name: Annotated[str, AfterValidator(_named), Field(json_schema_extra={"pattern": _NAME})] = "sweep"
    """The name of the sweep's directory below `storage`."""
    experiment: Experiment = Experiment()
    space: dict[str, DomainField] = {}
    """Dotted keys of the experiment and the values each may take; with `when`, only where a condition on others holds."""
    constraints: list[str] = []
    """Expressions that every trial fulfils, such as `model.depth * model.base_channels <= 256`."""
    search: SearchConfig = SearchConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    objective: Objective = Objective()
    budget: Budget = Budget()
    storage: str = "results"
    """The directory that sweeps are kept in; on several machines it must be a shared one. Or a URI (s3://bucket/path, gs://,
    hdfs://, file://): the sweep is copied there while it runs, and fetched from there where it goes on."""
    working_directory: str = "results"
    """The directory that sweeps work in where `storage` is a URI; on several machines it must be a shared one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.space:
            raise ValueError("space: names no setting, so there is nothing to sweep; for one run use raysweep train")
        mistakes: list[str] = []
        try:
            rules = self.rules()
        except ConfigError as error:
            rules, mistakes = None, [str(error)]
        for key, domain in self.space.items():
            mistakes += self._mistakes_in(key, domain, rules)
        if self.search.algorithm == "grid":
            endless = [key for key, domain in self.space.items() if domain.values() is None and not unknown_setting(key)]
            mistakes += [
                f"space.{key}: grid needs listed values; use {{grid: [...]}}, or search.algorithm random" for key in endless
            ]
            if self.search.num_samples is not None:
                mistakes.append("search.num_samples goes with the other searches; grid runs every combination once")
        mistakes += self._mistakes_in_start(rules) if rules else []
        epochs, grace = self.experiment.train.epochs, self.scheduler.grace_period
        if self.scheduler.name == "pbt":
            mistakes += population_mistakes(self.experiment, self.space, self.search, self.scheduler)
        elif self.scheduler.name in INDEPENDENT_RULES and grace >= epochs:
            mistakes.append(f"scheduler.grace_period {grace} of {epochs} epochs: no trial could ever be stopped; lower it")
        mistakes += self._mistakes_in_size() + self._mistakes_in_seeds()
        if self.scheduler.audit and self.scheduler.name not in INDEPENDENT_RULES:
            mistakes.append(
                f"scheduler.audit {self.scheduler.audit:g} lets trials run on that scheduler.name {self.scheduler.name} stops: "
                f"it needs one of {', '.join(INDEPENDENT_RULES)}, which stop each trial by itself; set one of them, or audit to 0"
            )
        if mistakes:
            raise ValueError("\n  ".join(mistakes))
        return self

    def _mistakes_in_size(self) -> list[str]:
        search, what = self.search, "search.num_samples"
        wanted = search.num_samples or 0
        if search.algorithm == "grid":
            if any(domain.when for domain in self.space.values()):
                return []  # fewer than the product, and how many shows when they are listed
            what, wanted = "the grid's combinations", math.prod(len(domain.values() or ()) for domain in self.space.values())
        seeds = 1 if search.contenders else search.seeds
        if wanted * seeds <= MAX_TRIALS:
            return []
        told = f"{wanted:,}" if seeds == 1 else f"{wanted:,} with {seeds} seeds each"
        return [f"{what}: {told}; a sweep has at most {MAX_TRIALS:,} trials, so take fewer, or draw some of the space (random)"]

    def _mistakes_in_seeds(self) -> list[str]:
        mistakes, seeds, contenders, rule = [], self.search.seeds, self.search.contenders, self.scheduler.name
        first = self.experiment.train.seed
        if seeds > 1 and SEED in self.space:
            mistakes.append(f"space.{SEED}: search.seeds {seeds} sets the seed of each trial; leave one of the two out")
        if first + seeds > 2**31:
            mistakes.append(f"search.seeds {seeds}: {SEED} {first} + {seeds - 1} is not below 2**31; lower {SEED}")
        if seeds > 1 and rule == "pbt":
            mistakes.append(
                f"search.seeds {seeds}: scheduler.name {rule} changes the settings of its trials while they run, so they are no "
                "configurations that a seed could repeat; set search.seeds to 1"
            )
        if contenders and seeds < 3:
            mistakes.append(
                f"search.contenders {contenders} needs search.seeds of at least 3, got {seeds}: the seed that makes a contender "
                "does not count, and a difference takes two more"
            )
        if contenders and rule not in ("none", *INDEPENDENT_RULES):
            mistakes.append(
                f"search.contenders {contenders} trains further seeds unseen by the scheduler: scheduler.name must be one of "
                f"none, {', '.join(INDEPENDENT_RULES)}; got {rule}"
            )
        return mistakes

    def rules(self) -> Rules:
        """The conditions of the space's domains, and the constraints.

        Raises:
            ConfigError: they cannot work; a checked sweep's can.
        """
        return Rules(self.experiment, self.space, self.constraints)

    def _mistakes_in_start(self, rules: Rules) -> list[str]:
        mistakes = []
        for number, point in enumerate(self.search.start_with):
            where = f"search.start_with.{number}"
            try:
                if what := rules.mistakes_in_point(point):
                    mistakes.append(f"{where}: {', '.join(what)}")
                    continue
                self.experiment.with_overrides(point)
            except ConfigError as error:
                mistakes.append(f"{where}: {'; '.join(line.strip() for line in str(error).splitlines()[1:] or [str(error)])}")
        return mistakes

    def _mistakes_in(self, key: str, domain: Domain, rules: Rules | None) -> list[str]:
        *parents, last = key.split(".")
        names = valid_names(Experiment, parents)
        if parents[:2] != ["model", "params"] and last not in names:
            if not parents:
                return [f"space.{unknown_setting(key)}"]
            return [unknown_key(f"space.{key}", names or list(Experiment.model_fields))]
        operational = parents[:1] == ["scale"] or (parents == ["train"] and last in OPERATIONAL["train"])
        if operational or [*parents, last] in (["data", "path"], ["data", "target_path"]):
            if key == "train.epochs":
                return [f"space.{key}: a trial keeps its best epoch, so one long trial holds all shorter ones; set {key} instead"]
            return [
                f"space.{key}: it does not change what is learned from the same images; trials would differ in the clock only"
            ]
        # A setting with a condition may be valid only where the condition is met.
        around = next((found for found in rules.examples(key) if key in found), None) if domain.when and rules else {}
        if around is None or (domain.when and rules is None):
            return []  # its trials will tell
        mistakes = []
        for value in domain.probes():
            try:
                self.experiment.with_overrides({**around, key: value})
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
        known = [*cls.model_fields, *Experiment.model_fields]
        for key in overrides:
            if (head := key.partition(".")[0]) not in known:
                raise ConfigError(f"--set {key}: {unknown_key(head, known)}" if "." in key else f"--set {unknown_setting(key)}")
        space = {k.removeprefix("space."): v for k, v in overrides.items() if k.startswith("space.")}
        for key, value in space.items():
            setting, _, kind = key.rpartition(".")
            if kind in KINDS:
                form = f"--set 'space.{setting}={{{kind}: {value}}}'"
                raise ConfigError(f"--set space.{key}: a domain is set whole: {form}")
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

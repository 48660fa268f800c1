"""Every setting of a sweep beside its experiment and its space: search, scheduler, objective, budget. The sweep is config.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import Self

from raysweep.settings import PositiveFloat, PositiveInt, Section

LISTED = ("grid", "random", "sobol")
"""Searches whose trials are all known before the first one runs; the others think of trials while some run."""

INDEPENDENT_RULES = ("asha", "hyperband", "median")
"""Schedulers that stop each trial by itself, at one of its epochs: it may run on, or others beside it, unseen by them."""

MAX_TRIALS = 100_000
"""Of a sweep: planning so many takes about half a minute; benchmarks/engine_scale.py ran a tenth of them."""

SEED = "train.seed"
"""The setting in which the trials of one configuration differ when search.seeds is above 1; its first trial does not set it."""


class OrFactory:
    """Beside the names of a Literal: a factory of the user's own, `package.module:factory`."""

    _FORM = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def checked(value: Any, names: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, str) and re.match(self._FORM, value):
                return value
            try:
                return names(value)
            except ValidationError as error:
                form = "; or a factory of your own, 'package.module:factory'"
                raise PydanticCustomError("name", "{rule}", {"rule": error.errors()[0]["msg"] + form}) from None

        plain = core_schema.to_string_ser_schema()
        return core_schema.no_info_wrap_validator_function(checked, handler(source), serialization=plain)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": self._FORM}]}


SectionT = TypeVar("SectionT", bound=Section)


def _params_have_a_factory(section: SectionT, setting: str, value: str) -> SectionT:
    params: dict[str, Any] = getattr(section, "params", {})
    if params and ":" not in value:
        raise ValueError(f"params are for a factory of your own, {setting} is {value}; leave them out")
    return section


class SearchConfig(Section):
    """How the space is walked."""

    algorithm: Annotated[Literal["grid", "random", "sobol", "tpe", "gp", "cmaes"], OrFactory()] = "grid"
    """grid: every combination. random: distinct draws. sobol: draws that fill the space evenly. Optuna's, which learn: tpe
    (tree-structured Parzen estimator), gp (Gaussian process), cmaes (covariance matrix adaptation of the ranges; it draws listed
    values at random). Or your own: `package.module:factory`, called with the space, the mode, the seed and `params`."""
    params: dict[str, Any] = {}
    """Further keyword arguments for a factory of your own."""
    num_samples: PositiveInt | None = None
    """The number of configurations, 16 when null; not for grid. `grid` domains count as `choice` for the others."""
    start_with: list[dict[str, Any]] = []
    """Points to try first, each with a value for every setting of the space."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The same seed gives the same list of trials (those that learn: with one trial at a time)."""
    seeds: PositiveInt = 1
    """Train each configuration with so many seeds: train.seed, train.seed + 1, ...; with contenders, at most so many."""
    contenders: Annotated[int, Field(ge=2)] | None = None
    """Train each configuration with one seed, then so many of the best with one more after the other, until one is left."""
    max_concurrent: PositiveInt | None = None
    """Run at most so many trials at once; null: as many as the resources carry."""

    @model_validator(mode="after")
    def _check_params(self) -> Self:
        return _params_have_a_factory(self, "algorithm", self.algorithm)


class SchedulerConfig(Section):
    """Which trials are stopped early; decided on the epoch."""

    name: Annotated[Literal["none", "asha", "median", "hyperband", "pbt"], OrFactory()] = "none"
    """asha: asynchronous successive halving. median: the worse half ends. hyperband: asha in several brackets, some of which
    stop later, and one never. pbt: population-based training, the worst copy the best and change the optimizer's settings. Or
    your own: `package.module:factory`, called with the mode, the number of epochs and `params`."""
    params: dict[str, Any] = {}
    """Further keyword arguments for a factory of your own."""
    grace_period: PositiveInt = 1
    """Epochs that every trial gets before it can be stopped."""
    reduction_factor: Annotated[float, Field(gt=1)] = 3
    """asha, hyperband: one in so many goes on past each rung."""
    min_samples: PositiveInt = 3
    """median: trials that must have reached an epoch before one is stopped there."""
    audit: Annotated[float, Field(ge=0, le=1)] = 0.0
    """asha, median, hyperband: this share of the trials that would be stopped, drawn by search.seed, runs on to the last epoch,
    so that the report can say how often stopping was wrong."""
    interval: PositiveInt = 2
    """pbt: epochs of a generation, after which the worst members copy the best."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """pbt: the share of the population that copies, and the share that is copied; at least one member each."""
    resample_probability: Annotated[float, Field(ge=0, le=1)] = 0.25
    """pbt: how often a copied setting is drawn anew from its domain, instead of being multiplied by 0.8 or 1.2."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("interval", "quantile", "resample_probability"):
            if name in self.model_fields_set and self.name != "pbt":
                raise ValueError(f"scheduler.{name} goes with scheduler.name pbt, got {self.name}")
        return self

    @model_validator(mode="after")
    def _check_params(self) -> Self:
        return _params_have_a_factory(self, "name", self.name)


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

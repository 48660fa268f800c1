"""Trials that are drawn: random, quasi-random, or in a searcher's place; draws that break a constraint are drawn anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raysweep.conditions import Rules
from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.sweep_settings import LISTED
from raysweep.tune.own import is_in, is_own

if TYPE_CHECKING:
    from raysweep.tune.plan import Plan

MAX_REFUSED = 10_000
"""Draws in a row that break a constraint, after which the space counts as used up."""
_MAX_DRAWS_PER_TRIAL = 100
_EFFECTIVE = {
    "optim.momentum": ("optim.name", ("sgd",)),
    "optim.betas": ("optim.name", ("adam", "adamw")),
    "optim.eps": ("optim.name", ("adam", "adamw")),
    "optim.min_lr": ("optim.schedule", ("cosine",)),
}
"""Settings that have an effect only beside some values of another one."""


def draws(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Endless random draws, the same ones for the same search.seed; a condition changes no value that is drawn."""
    rng, rules = np.random.default_rng(sweep.search.seed), sweep.rules()
    while True:
        yield rules.active({key: domain.sample(rng) for key, domain in sweep.space.items()})


def sobol(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Endless quasi-random draws: a scrambled Sobol sequence (Owen, 1998), the same one for the same search.seed."""
    engine = torch.quasirandom.SobolEngine(len(sweep.space), scramble=True, seed=sweep.search.seed)  # type: ignore[no-untyped-call]
    rules = sweep.rules()
    while True:
        shares = engine.draw(1, dtype=torch.float64)[0].tolist()
        # A scrambled point can round to 1.
        at = {key: domain.at(min(share, 1 - 2**-53)) for (key, domain), share in zip(sweep.space.items(), shares, strict=True)}
        yield rules.active(at)


class Draws:
    """Draws that fulfil the constraints.

    Attributes:
        refused: how many did not.
        why: which constraint the newest of those broke.

    Args:
        source: endless draws.
        rules: with the constraints.
    """

    def __init__(self, source: Iterator[dict[str, Any]], rules: Rules) -> None:
        self.refused, self.why = 0, ""
        self._source, self._rules = source, rules

    def next(self) -> dict[str, Any] | None:
        """The next one; None where 10,000 in a row broke a constraint."""
        for overrides in itertools.islice(self._source, MAX_REFUSED):
            why = self._rules.broken(overrides)
            if not why:
                return overrides
            self.refused, self.why = self.refused + 1, why
        return None

    def describe(self) -> str:
        """Why there is no draw, for a space that has none."""
        return f"constraints: {self.refused} draws of the space in a row broke them; the last: {self.why}"


def check_not_empty(plan: Plan, source: Iterator[dict[str, Any]]) -> None:
    """Refuse a space of which constraints leave nothing, before a searcher looks for a trial in it.

    Raises:
        ConfigError: 10,000 draws in a row broke a constraint.
    """
    found = Draws(source, plan.rules)
    if found.next() is None:
        raise ConfigError(found.describe())


def max_infeasible(wanted: int) -> int:
    """How many draws that cannot be trained are listed, where so many trials are wanted, before drawing is given up."""
    return 20 + 5 * wanted


def plan_draws(plan: Plan, source: Iterator[dict[str, Any]], distinct: float) -> None:
    """Draw trials until there are `plan.num_planned` that can be trained; those that cannot are listed, too.

    Args:
        plan: with the points to try first.
        source: endless draws.
        distinct: how many different trials there are.

    Raises:
        ConfigError: there is none, or hardly one.
    """
    wanted, found = plan.num_planned, Draws(source, plan.rules)
    infeasible: list[str] = []
    num_drawn = 0
    while len(plan.trials) - len(infeasible) < wanted and len(plan.trials) < distinct:
        overrides = found.next() if num_drawn < _MAX_DRAWS_PER_TRIAL * wanted else None
        if overrides is None or len(infeasible) > max_infeasible(wanted):
            break
        num_drawn += 1
        try:
            plan.add(overrides)
        except ConfigError as error:
            if plan.add_infeasible(overrides, str(error)) is not None:
                infeasible.append(str(error))
    trainable = len(plan.trials) - len(infeasible)
    reasons = "\n  ".join(list(dict.fromkeys(infeasible))[:5])
    if trainable == 0 and not infeasible:
        raise ConfigError(found.describe())
    if trainable == 0:
        raise ConfigError(f"no trial of the space can be trained:\n  {reasons}")
    if len(infeasible) > max_infeasible(wanted):
        raise ConfigError(
            f"only {trainable} of {len(plan.trials)} draws of the space can be trained; narrow it, or say with constraints "
            f"what can:\n  {reasons}"
        )
    if trainable < min(wanted, distinct - len(infeasible)):
        drawn = num_drawn + found.refused
        plan.notes.append(f"only {trainable} different trials were found in {drawn} draws, {wanted} were wanted")
    if found.refused:
        plan.notes.append(note_refused(found.refused, found.why))
    plan.num_planned = len(plan.trials)
    note_infeasible(plan)


def note_refused(number: int, why: str) -> str:
    """A sentence about draws that broke a constraint."""
    were = "draw broke a constraint and was" if number == 1 else "draws broke a constraint and were"
    return f"{number} {were} drawn anew; the last: {why}"


def note_search(plan: Plan) -> None:
    """Note what may be a slip, or meant so: lists that Optuna's cmaes draws at random, other images, points outside the space."""
    algorithm, space = plan.sweep.search.algorithm, plan.sweep.space
    listed = [key for key, domain in space.items() if domain.kind in ("choice", "grid")]
    if algorithm == "cmaes" and listed:
        plan.notes.append(
            f"search.algorithm cmaes learns of ranges, and draws {', '.join(listed)} at random; tpe and gp learn of lists, too"
        )
    if images := [key for key in space if key.startswith("data.")]:
        verb = "makes" if len(images) == 1 else "make"
        plan.notes.append(f"{', '.join(images)} {verb} other images: losses compare only between trials that have the same")
    plan.notes += _without_effect(plan)
    learns = "" if algorithm in LISTED or is_own(algorithm) else f", and {algorithm} learns nothing from it"
    plan.notes += [
        f"search.start_with.{number}: {key} {value} lies outside the space; the point is tried all the same{learns}"
        for number, point in enumerate(plan.sweep.search.start_with)
        for key, value in point.items()
        if not is_in(space[key], value, partial(plan.rules.read, key))
    ]


def _without_effect(plan: Plan) -> list[str]:
    """Where trials would differ in a setting that has no effect, and train the same twice."""
    space, notes = plan.sweep.space, []
    for key, (beside, values) in _EFFECTIVE.items():
        if key not in space or space[key].when:
            continue
        listed = space[beside].values() if beside in space else [plan.sweep.experiment.get(beside)]
        idle = [str(value) for value in listed or () if value not in values]
        if idle:
            can = " or ".join(f"{beside} == '{value}'" for value in values)
            mend = f'give it `when: "{can}"`' if len(idle) < len(listed or ()) else "leave it out"
            notes.append(f"{key} has no effect with {beside} {', '.join(idle)}, where the same would be trained again; {mend}")
    return notes


def note_infeasible(plan: Plan) -> None:
    """Note how many of the plan's trials cannot be trained, where there are such."""
    number = sum(bool(trial.infeasible) for trial in plan.trials)
    if number:
        plan.notes.append(f"{number} of {plan.num_planned} trials cannot be trained and are in the results as infeasible")

"""What a population's members copy and how copies are changed: population-based training as functions of values, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysweep.config import Sweep
from raysweep.space import Domain, significant

FACTORS = (0.8, 1.2)
"""What a copied number is multiplied by."""


@dataclass(frozen=True)
class Member:
    """A member at the end of a generation.

    Attributes:
        number: of its trial.
        overrides: its settings.
        value: its objective after the generation's last epoch; None where it is not finite or the member diverged.
    """

    number: int
    overrides: Mapping[str, Any]
    value: float | None


@dataclass(frozen=True)
class Exploit:
    """A member takes over weights, optimizer state and settings of another one (`donor`); `overrides`: its new settings."""

    trial: int
    donor: int
    overrides: dict[str, Any]


def exploits(members: Sequence[Member], sweep: Sweep, generation: int) -> list[Exploit]:
    """Who copies whom after a generation, and what the copies' settings become; a function of its arguments alone.

    Truncation selection (Jaderberg et al., Population Based Training of Neural Networks, 2017, section 4.1.1): the worst
    `quantile` of the members, and every one without a finite value, copies a random one of the best `quantile`. Empty where
    nobody has a finite value.

    Args:
        members: those that have not ended, of any order.
        sweep: space, scheduler, objective, search.seed.
        generation: its number, from 1.
    """
    scheduler, sign = sweep.scheduler, 1 if sweep.objective.mode == "min" else -1
    # The journal keeps seven digits of a psnr, and a restarted sweep must decide the same.
    finite = [m for m in members if m.value is not None]
    ranked = sorted(finite, key=lambda m: (sign * significant(m.value or 0.0, 7), m.number))
    others = sorted((m for m in members if m.value is None), key=lambda m: m.number)
    at_most = max(1, int(scheduler.quantile * len(members)))
    donors = ranked[:at_most]
    receivers = [*ranked[len(donors) :], *others][-max(at_most, len(others)) :] if donors else []
    found = []
    for receiver in sorted(receivers, key=lambda m: m.number):
        rng = np.random.default_rng([sweep.search.seed, generation, receiver.number])
        donor = donors[int(rng.integers(len(donors)))]
        found.append(Exploit(receiver.number, donor.number, explored(donor.overrides, sweep, rng)))
    return found


def explored(overrides: Mapping[str, Any], sweep: Sweep, rng: np.random.Generator) -> dict[str, Any]:
    """Copied settings, each number of the optimizer's drawn anew with `resample_probability`, else changed a little.

    The others, and what is a name (`optim.name`), belong to the weights or to the optimizer's state and stay; so do all where
    the changed ones would break a constraint or another setting's condition.
    """
    new = dict(overrides)
    for key, value in overrides.items():
        domain = sweep.space[key]
        if not key.startswith("optim.") or isinstance(value, str):
            continue
        is_drawn = rng.random() < sweep.scheduler.resample_probability
        new[key] = domain.sample(rng) if is_drawn else perturbed(domain, value, up=bool(rng.random() < 0.5))
    rules = sweep.rules()
    if rules.are_any and not rules.holds(new):
        new = dict(overrides)
    # As they are understood: "1e-3" of a list is 0.001.
    experiment = sweep.experiment.with_overrides(new)
    return {key: list(value) if isinstance(value := experiment.get(key), tuple) else value for key in new}


def perturbed(domain: Domain, value: Any, up: bool) -> Any:
    """A value of the domain near `value`: times 1.2 or 0.8, at least one step of a stepped domain; in a list a neighbour."""
    factor = FACTORS[up]
    if domain.kind in ("uniform", "loguniform"):
        return domain.rounded(value * factor)
    if domain.kind in ("choice", "grid"):
        places = [place for place, listed in enumerate(domain.args) if _same(listed, value)]
        if not places:
            return value  # a point of search.start_with beside the list
        place = places[0] + (1 if up else -1)
        inside = place if 0 <= place < len(domain.args) else places[0] - (1 if up else -1)
        return domain.args[inside] if 0 <= inside < len(domain.args) else value
    low, high = domain.args[0], domain.corners()[-1]
    step = domain.args[2] if domain.kind == "quniform" else 1
    now, wanted = (round((v - low) / step) for v in (value, value * factor))
    if wanted == now:
        wanted += 1 if up else -1
    return domain.rounded(low + min(max(wanted, 0), int((high - low) / step + 1e-9)) * step)


def _same(listed: Any, value: Any) -> bool:
    """Whether a list's entry, as the user wrote it, is a setting's value."""
    if isinstance(listed, str):
        try:
            listed = float(listed)
        except ValueError:
            return False
    return bool((list(listed) if isinstance(listed, tuple) else listed) == value)

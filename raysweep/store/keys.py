"""The key of a trial: which training it is, on any machine, in any directory, with any budget.

What counts as the same configuration is Experiment.identity(); this module only hashes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from raysweep.config import Sweep
from raysweep.experiment import Experiment

TRAINING_VERSION = 1
"""The meaning of raysweep's own training; raised only when the same configuration gives other results."""

KEY_LENGTH = 12


def _canonical(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        # 1, 1.0 and 1e0 are one setting, and so is 0.1 + 0.2 with 0.3, or 1 + 1e-15 with 1.
        value = value if _is_whole(value) else float(f"{value:.12g}")
        return int(value) if _is_whole(value) else value
    if isinstance(value, dict):
        return {str(k): _canonical(v) for k, v in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    return repr(value)


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < 2**53


def _identity(experiment: Experiment) -> dict[str, Any]:
    """Experiment.identity() in its canonical form; a number that is the default but for rounding is left out as well."""
    found = {}
    for section, settings in experiment.identity().items():
        fields = type(getattr(experiment, section)).model_fields
        kept = {name: _canonical(value) for name, value in settings.items()}
        for name, value in settings.items():
            if isinstance(value, float | list) and kept[name] == _canonical(fields[name].get_default()):
                del kept[name]
        if kept:
            found[section] = kept
    return found


def trial_key(experiment: Experiment, data_fingerprint: str, code_fingerprint: str = "") -> str:
    """12 hex digits (48 bits: of 10,000 trials two collide with a chance of 2e-7).

    Args:
        experiment: the trial's validated experiment; its seed counts, its budget and scale do not.
        data_fingerprint: a hash of the samples' content.
        code_fingerprint: a hash of the user's plug-in sources, empty without plug-ins.
    """
    identity = {
        "experiment": _identity(experiment),
        "data": data_fingerprint,
        "code": [TRAINING_VERSION, code_fingerprint],
    }
    return _hashed(identity)


def member_key(key: str, sweep: Sweep) -> str:
    """The key of a population's member: of the trial, and of what decides whom it copies. More epochs change no key.

    Args:
        key: the trial's, if it trained alone.
        sweep: who else is in the population, and how they are compared and copied.
    """
    scheduler, objective = sweep.scheduler, sweep.objective
    population = {
        "space": [[name, domain.as_dict()] for name, domain in sweep.space.items()],
        "search": sweep.search.model_dump(mode="json", exclude={"max_concurrent"}, exclude_defaults=True),
        "scheduler": [scheduler.interval, scheduler.quantile, scheduler.resample_probability],
        "objective": [objective.metric, objective.mode],
    }
    return _hashed({"trial": key, "population": _canonical(population)})


def infeasible_key(experiment: Experiment, overrides: Mapping[str, Any], data_fingerprint: str) -> str:
    """The key of a trial that no valid experiment stands for, by what it would have changed.

    Args:
        experiment: the sweep's own.
        overrides: dotted keys and the trial's values.
        data_fingerprint: a hash of the samples' content.
    """
    return _hashed({"experiment": _identity(experiment), "infeasible": _canonical(dict(overrides)), "data": data_fingerprint})


def _hashed(identity: dict[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]

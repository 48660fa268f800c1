"""Which directory holds the sweep that is gone on with: one of the same images, objective and settings around the space.

And by what a trial finds the row of its combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysweep.errors import ConfigError, DataError
from raysweep.experiment import difference
from raysweep.store.keys import infeasible_key
from raysweep.tune.plan import Plan, as_listed, grid_of_corners

if TYPE_CHECKING:
    from raysweep.tune.resume import Past


def why_other(past: Past, plan: Plan) -> str:
    """Why a plan's trials cannot stand beside those of a journal; "" where they can: same images, same settings around the space.

    A setting that either sweep varies may differ: it is part of each trial's key.
    """
    varied = {*past.sweep.space, *plan.sweep.space}
    if not _has_the_images(past, plan, sorted(key for key in varied if key.startswith("data."))):
        return f"the images differ ({past.data.get('fingerprint')}, now {plan.prepared.facts['fingerprint']})"
    if past.sweep.objective != plan.sweep.objective:
        return f"the objective differs ({past.sweep.objective.metric}, now {plan.sweep.objective.metric})"
    return difference(past.sweep.experiment, plan.sweep.experiment, varied)


def _has_the_images(past: Past, plan: Plan, varied: list[str]) -> bool:
    """Whether the images of a journal are those of a plan; where settings of them are varied, for one of the journal's values."""
    told = past.data.get("fingerprint")
    if told == plan.prepared.facts["fingerprint"]:
        return True
    # The journal's is that of one corner of its space, which may be no corner of the plan's.
    own = {key: as_listed(past.sweep.experiment.get(key)) for key in varied}
    for corner in itertools.islice(grid_of_corners(past.sweep), 64 if varied else 0):
        try:
            images = plan.dataset(plan.experiment({**own, **{key: corner[key] for key in varied if key in corner}}))
        except (ConfigError, DataError):
            continue
        if images.fingerprint == told:
            return True
    return False


def combination(plan: Plan, overrides: Mapping[str, Any]) -> str:
    """Names a combination of settings, whether it can be trained or not."""
    read = {key: plan.rules.read(key, value) for key, value in overrides.items()}
    return infeasible_key(plan.sweep.experiment, read, plan.prepared.dataset.fingerprint)

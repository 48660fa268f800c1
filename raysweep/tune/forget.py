"""Ended trials are taken from Ray Tune's memory: the journal has all of them, and 10,000 of them would be 240 MB.

Ray Tune (2.60) keeps every trial that has ever been, and beside it its state as JSON for snapshots that nobody here reads:
a resume reads the journal. Each snapshot, and the end of a sweep, would write all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def forget(tune_controller: Any, ended: Iterable[Any]) -> None:
    """Take trials that have ended from all that a controller keeps; where a version of Ray lacks a part, from the others.

    One stays where all have ended.

    Args:
        tune_controller: as Ray Tune hands it to a scheduler, wrapped or not.
        ended: its trials, of status TERMINATED.
    """
    ended = set(ended)
    if not ended:
        return
    controller = getattr(tune_controller, "_tune_controller", tune_controller)
    trials = controller.get_trials()
    # Where no actor runs for a minute Ray Tune names its first trial in a warning, so there must be one.
    trials[:] = [trial for trial in trials if trial not in ended] or trials[-1:]
    for name in ("_stopped_trials", "_trials_to_cache"):
        getattr(controller, name, set()).difference_update(ended)
    snapshots = getattr(controller, "_trial_metadata", {})
    for trial in ended:
        snapshots.pop(trial.trial_id, None)

"""How often early stopping was wrong, from trials that ran on although the scheduler had stopped them; and what it saved."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raysweep.store.rows import by_trial

_Z = 1.959963984540054  # of 95 %, two-sided


def wilson(hits: int, num: int) -> tuple[float, float]:
    """The 95 % score interval of a rate (Wilson, 1927, Journal of the American Statistical Association 22).

    Args:
        hits: how often it happened.
        num: of how many times, at least 1.
    """
    rate, shrink = hits / num, 1 + _Z**2 / num
    middle = (rate + _Z**2 / (2 * num)) / shrink
    half = _Z / shrink * math.sqrt(rate * (1 - rate) / num + _Z**2 / (4 * num**2))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Stopping:
    """What early stopping did in a sweep.

    Attributes:
        num_stopped: trials that the scheduler stopped for good.
        num_audited: trials that it would have stopped and that ran on.
        num_ended: of those, how many have ended by themselves, as a training does: only they say anything.
        beat_best: of those, how many ended better than the best trial that was not audited.
        beat_median: how many ended better than the median of the trials that were let through; None where there are none.
        epochs_saved: epochs that the stopped trials were not trained for.
        seconds_saved: of devices (seconds x workers), at each stopped trial's own pace.
        epochs_spent, seconds_spent: what the audited trials took after they would have been stopped, the same way.
    """

    num_stopped: int
    num_audited: int
    num_ended: int
    beat_best: int
    beat_median: int | None
    epochs_saved: int
    seconds_saved: float
    epochs_spent: int
    seconds_spent: float


def audited_trials(
    trials: pd.DataFrame,
    rows: pd.DataFrame,
    ends: Mapping[int, dict[str, Any]],
    decisions: Sequence[dict[str, Any]],
    metric: str,
    mode: str,
    unseen: Collection[int] = (),
) -> pd.DataFrame:
    """One row per audited trial: what the scheduler saw when it would have stopped it, and what became of it.

    Args:
        trials, rows, ends, decisions, metric, mode: as in Results.
        unseen: trials that the scheduler did not see at all.

    Returns:
        trial, rule, epoch, rung, value, cutoff (of the decision), status, epochs, the metric (best over all epochs), ended,
        beats_best, beats_median (NA before the trial has ended), epochs_spent, seconds_spent (after the decision; of devices).
    """
    told = {d["trial"]: d for d in decisions if d.get("action") == "audit"}
    sign = 1.0 if mode == "min" else -1.0
    by_number = trials.set_index("trial")
    sound = by_number["status"].isin(("completed", "stopped", "interrupted", "budget", "unfinished")) & by_number[metric].notna()
    others = by_number[sound & ~by_number.index.isin([*told, *unseen])]
    through = [n for n in others.index if _ended_by_itself(ends.get(int(n)))]
    best = float((others[metric] * sign).min()) if len(others) else None
    median = float((others.loc[through, metric] * sign).median()) if through else None
    records, places = [], by_trial(rows)
    for number, decision in sorted(told.items()):
        trial = by_number.loc[number]
        has_ended = _ended_by_itself(ends.get(number))
        # A trial that diverged has no value that counts, and a stop that kept it from doing so was right.
        value = float(trial[metric]) * sign if has_ended and trial["status"] != "diverged" else math.inf
        own = rows.iloc[places.get(number, slice(0))]
        after = own[own["epoch"] > decision["epoch"]]
        records.append(
            {
                "trial": number,
                **{name: decision.get(name) for name in ("rule", "epoch", "rung", "value", "cutoff")},
                "status": trial["status"],
                "epochs": trial["epochs"],
                metric: trial[metric],
                "ended": has_ended,
                "beats_best": pd.NA if not has_ended or best is None else value < best,
                "beats_median": pd.NA if not has_ended or median is None else value < median,
                "epochs_spent": len(after),
                "seconds_spent": _device_seconds(after),
            }
        )
    columns = ["trial", "rule", "epoch", "rung", "value", "cutoff", "status", "epochs", metric, "ended", "beats_best"]
    frame = pd.DataFrame.from_records(records, columns=[*columns, "beats_median", "epochs_spent", "seconds_spent"])
    kinds = dict.fromkeys(("trial", "epoch", "rung", "epochs", "epochs_spent"), "Int64")
    kinds |= dict.fromkeys(("ended", "beats_best", "beats_median"), "boolean") | {"rule": "string", "status": "string"}
    return frame.astype({**kinds, **dict.fromkeys(("value", "cutoff", metric, "seconds_spent"), "float64")})


def _ended_by_itself(end: dict[str, Any] | None) -> bool:
    """Whether a training came to its own end: its last epoch, its patience, or a loss that is not finite."""
    if end is None:
        return False
    reason = end.get("reason") or {}
    return end["status"] in ("completed", "diverged") or (end["status"] == "stopped" and reason.get("rule") == "patience")


def _device_seconds(rows: pd.DataFrame) -> float:
    if not {"seconds", "world_size"} <= set(rows):
        return 0.0
    return float((rows["seconds"] * rows["world_size"].astype("float64")).sum())


def stopping(
    trials: pd.DataFrame,
    rows: pd.DataFrame,
    ends: Mapping[int, dict[str, Any]],
    audited: pd.DataFrame,
    epochs: int,
) -> Stopping:
    """What early stopping did.

    Args:
        trials, rows, ends: as in Results.
        audited: as `audited_trials` returns it.
        epochs: of a trial that runs to its end.
    """
    saved_epochs, saved_seconds, num_stopped, places = 0, 0.0, 0, by_trial(rows)
    for number, end in ends.items():
        if end["status"] != "stopped" or (end.get("reason") or {}).get("rule") == "patience":
            continue
        num_stopped += 1
        own = rows.iloc[places.get(number, slice(0))]
        left = max(0, epochs - int(own["epoch"].max())) if len(own) else 0
        saved_epochs += left
        saved_seconds += left * _device_seconds(own) / max(1, len(own))
    ended = audited[audited["ended"]]
    return Stopping(
        num_stopped=num_stopped,
        num_audited=len(audited),
        num_ended=len(ended),
        beat_best=int(ended["beats_best"].fillna(True).sum()),
        beat_median=None if ended["beats_median"].isna().any() else int(ended["beats_median"].sum()),
        epochs_saved=saved_epochs,
        seconds_saved=saved_seconds,
        epochs_spent=int(audited["epochs_spent"].sum()),
        seconds_spent=float(audited["seconds_spent"].sum()),
    )

"""The report's sentences: the answer, how much was done, and what to change next.

Pure functions from results to texts; numbers and tables are tables.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.report import seeds
from raysweep.report.tables import (
    baselines,
    duration,
    failures,
    measured,
    missing,
    moment,
    number,
    settings_text,
    times,
)
from raysweep.space import significant
from raysweep.store.results import STATUSES, Results
from raysweep.sweep_settings import SEED

_EDGE = 0.05
"""The best of a continuous range lies at its edge when it is within this share of the range."""


def answer(results: Results) -> str:
    """The report in one sentence: the best settings and what they are worth, or why there is no best."""
    best = results.best
    if best is None:
        return _no_best(results)
    metric = results.metric
    what = settings_text(dict(best), results.params) or f"trial {best['trial']}"
    worth = _worth(results, best)
    value = f"{metric} {measured(worth)}{seeds.spread(results) if results.has_seeds else ''}"
    compared = _comparisons(_loss(results, best), baselines(results.data))
    if metric != "val_loss" and compared:
        value += f" ({'mean ' if results.has_seeds else ''}val_loss {measured(_loss(results, best))})"
    return f"Best: {what}: {', '.join([value, *compared])}."


def _worth(results: Results, best: Any) -> Any:
    """The objective that the best is ranked by: its own, or with several seeds their mean."""
    return results.configurations.iloc[0]["mean"] if results.has_seeds else best[results.metric]


def _loss(results: Results, best: Any) -> Any:
    """The best's val_loss; with several seeds the mean of those that it is ranked by."""
    return results.configurations.iloc[0]["mean_val_loss"] if results.has_seeds else best["val_loss"]


def _comparisons(loss: Any, against: Mapping[str, float]) -> list[str]:
    if missing(loss) or not math.isfinite(loss) or loss <= 0:
        return []
    texts = []
    for name, baseline in against.items():
        if baseline <= 0:
            continue  # X is Y: the input itself is perfect, and nothing can be better
        ratio = baseline / float(loss)
        if ratio > 1.05:
            texts.append(f"{times(ratio)} below the {name}")
        elif ratio > 1:
            texts.append(f"hardly below the {name} ({measured(baseline)})")
        else:
            texts.append(f"NOT better than the {name} ({measured(baseline)})")
    return texts


def _no_best(results: Results) -> str:
    statuses = results.trials["status"]
    if len(statuses) == 0:
        return "No best: the journal holds no trial yet."
    plural = "the only trial" if len(statuses) == 1 else f"all {len(statuses)} trials"
    errors = "; ".join(f"{f.error} ({trial_list(f.trials)})" for f in failures(results)[:3])
    if (statuses == "failed").all():
        return f"No best: {plural} failed. {errors}"
    if (statuses == "infeasible").all():
        return f"No best: {plural} could not be run. {errors}"
    if (statuses == "diverged").all():
        first = results.trials.iloc[0]
        return f"No best: {plural} diverged (trial {first['trial']}: {first['reason']}). Try lower learning rates."
    if results.rows.empty and statuses.isin(("unfinished", "interrupted", "budget")).any():
        return "No best yet: no trial has reported an epoch." + (f" {errors}" if errors else "")
    return f"No best: no trial has a finite {results.metric} ({counts(results)})." + (f" {errors}" if errors else "")


def trial_list(trials: tuple[int, ...], limit: int = 12) -> str:
    """`trial 3`, `trials 0, 1, 2 and 40 more`."""
    shown = ", ".join(str(t) for t in trials[:limit])
    more = f" and {len(trials) - limit} more" if len(trials) > limit else ""
    return f"trial{'s' if len(trials) > 1 else ''} {shown}{more}"


def counts(results: Results) -> str:
    """`16 planned: 13 completed, 3 diverged`."""
    found = results.trials["status"].value_counts()
    parts = [f"{found[status]} {status}" for status in STATUSES if found.get(status)]
    return f"{len(results.trials)} planned" + (f": {', '.join(parts)}" if parts else "")


def status(results: Results) -> str:
    """The counts, whether it is over, and when it ran; times are the journal's."""
    what = "sweep" if results.sweep else "run"
    state = {
        "completed": "",
        None: f" The {what} has not finished.",
        "budget": f" The {what} ended because {_budget(results)}.",
        "interrupted": f" The {what} was interrupted and has not finished.",
    }.get(results.finished, f" The {what} ended as {results.finished}.")
    started, times_seen = results.start.get("time"), [e.get("time") for e in results.ends.values()]
    if "time" in results.rows:
        times_seen += [float(t) for t in results.rows["time"].dropna()]
    times = [float(t) for t in times_seen if t is not None]
    last = max(times, default=None)
    again = bool(times) and not missing(started) and min(times) < float(str(started))
    when = f" {'Last started' if again else 'Started'} {moment(started)}" if not missing(started) else ""
    if when and last is not None:
        when += f", last entry {moment(last)}"
    trained = f" Training time of all trials together: {duration(float(results.trials['seconds'].sum()))}."
    return f"{counts(results)}.{state}{when + '.' if when else ''}{trained}{planned(results)}"


def _budget(results: Results) -> str:
    """Which budget ended a sweep, from what its trials were ended with."""
    reasons = [str((end.get("reason") or {}).get("text", "")) for end in results.ends.values() if end.get("status") == "budget"]
    named = [found[0] for reason in reasons if (found := re.match(r"budget\.\w+ was (spent|reached by trial \d+)", reason))]
    if not named:
        return "its budget was used up"
    return named[0] + ("; with more of it the same command goes on" if named[0].endswith("spent") else "")


def planned(results: Results) -> str:
    """` Planned 1 min 30 s to 2 min, took 1 min 45 s.`; "" where `--plan` predicted nothing for these trials."""
    predicted = results.wall.predicted
    if not predicted:
        return ""
    low, _, high = predicted["wall_s"]
    so_far = "" if results.finished == "completed" else " so far"
    return f" Planned {duration(low)} to {duration(high)}, took {duration(results.wall.seconds)}{so_far}."


def remarks(results: Results) -> list[str]:
    """What the reader should know before using the answer, and what to change next; often nothing."""
    best = results.best
    if best is None:
        return []
    texts = []
    if worse_than_mean_image(results):
        which = "configuration, in the mean over its seeds," if results.has_seeds else "trial"
        learned = "" if results.has_seeds else ": no trial has learned anything about single images"
        texts.append(
            f"The best {which} is not better than answering every input with the mean image{learned}. "
            "Look at the learning rate, the pairs of X and Y, and the number of epochs."
        )
    if results.sweep and results.finished == "completed":  # else values further out may not have run yet
        texts += edge_hints(results.sweep, dict(best), results.trials.to_dict("list"))
    texts += seeds.seed_remarks(results)
    later = _trained_again(results, best)
    if later is not None:
        texts.append(
            f"The best is trial {best['trial']}; trial {later} has the same settings and is another training: your model's "
            "source, raysweep's own, or with optim.schedule cosine the number of train.epochs has changed since."
        )
    gained = _last_gain(results, int(best["trial"]))
    if gained > 0.02 and best["status"] in ("completed", "budget"):
        texts.append(
            f"The best trial's {results.metric} was still improving, by {gained:.0%} in its last epoch ({best['epochs']}): "
            "more train.epochs may help."
        )
    return texts


def _trained_again(results: Results, best: Any) -> int | None:
    """The newest trial with all settings of the best one, its seed included, that was planned after it; None: there is none."""
    if results.sweep is None or results.sweep.scheduler.name == "pbt":  # whose members copy settings
        return None
    names = [*results.params.values(), *([SEED] if results.has_seeds else [])]
    later = results.trials[results.trials["trial"] > best["trial"]]
    wanted = [number(best[name], 12) for name in names]
    same = [int(t["trial"]) for _, t in later.iterrows() if [number(t[name], 12) for name in names] == wanted]
    return max(same, default=None)


def worse_than_mean_image(results: Results) -> bool:
    """Whether there is a best, and even it is not better than the mean image."""
    best, mean_image = results.best, baselines(results.data).get("mean image")
    if best is None or mean_image is None:
        return False
    loss = _loss(results, best)
    return not missing(loss) and bool(loss >= mean_image)


def _last_gain(results: Results, trial: int) -> float:
    """By what share of the value before the last epoch improved the objective; negative where it did not."""
    values = results.rows.loc[results.rows["trial"] == trial, results.metric].tolist()
    if len(values) < 2 or not all(math.isfinite(v) for v in values[-2:]) or values[-2] == 0:
        return 0.0
    gain = float((values[-2] - values[-1]) / abs(values[-2]))
    return gain if results.mode == "min" else -gain


def edge_hints(sweep: Sweep, best: Mapping[str, Any], tried: Mapping[Any, list[Any]]) -> list[str]:
    """For each swept number whose best value lies at the end of its range: which way to widen it.

    Args:
        sweep: the ranges, and the rules for what may be tried.
        best: the best trial's settings by short name.
        tried: the settings of all trials by short name; they may reach beyond the range of a sweep that was extended.
    """
    hints = []
    for key, short in sweep.short_names().items():
        domain = sweep.space[key]
        ends = [*domain.corners(), *tried[short]]
        if not all(is_number(v) or missing(v) for v in ends) or missing(best[short]):
            continue
        values = sorted({float(v) for v in ends if not missing(v)})
        value, low, high = float(best[short]), values[0], values[-1]
        if low == high:
            continue
        ranged = domain.values() is None
        # Ratios are compared where the range is drawn by ratios, or a list is one of learning rates or spans two decades.
        log = domain.is_log or (low > 0 and (high / low >= 100 or (key == "optim.lr" and not ranged)))
        for edge, outward in ((low, -1), (high, 1)):
            if not _at_edge(value, edge, (low, high), log, ranged):
                continue
            whole = all(float(v).is_integer() and not isinstance(v, float) for v in ends if not missing(v))
            beyond = _beyond(sweep, key, values, outward, log, whole)
            if beyond is not None:
                word, direction = ("lowest", "lower") if outward < 0 else ("highest", "higher")
                lies = f"lies at the {word} end of its range ({number(edge)})" if ranged else f"is the {word} value tried"
                hints.append(
                    f"{short} {number(best[short])} {lies}: the best may lie beyond it. Widen {key} to {direction} values, "
                    f"for example {number(beyond)}."
                )
    return hints


def is_number(value: Any) -> bool:
    """Whether a setting is a number (a switch is not)."""
    return not isinstance(value, bool) and isinstance(value, Real) and not missing(value)


def _at_edge(value: float, edge: float, span: tuple[float, float], log: bool, ranged: bool) -> bool:
    if not ranged:
        return value == edge
    low, high = span
    if log:
        return abs(math.log(value / edge)) <= _EDGE * math.log(high / low)
    return abs(value - edge) <= _EDGE * (high - low)


def _beyond(sweep: Sweep, key: str, values: list[float], outward: int, log: bool, whole: bool) -> float | int | None:
    """The next value past the edge that the setting's own rules allow; None where there is none (depth 0)."""
    edge, inner = (values[0], values[1]) if outward < 0 else (values[-1], values[-2])
    if log:
        ratio = min(max(abs(math.log10(edge / inner)), 0.5), 1.0)
        next_value = edge * 10 ** (outward * ratio)
    else:
        next_value = edge + outward * max(abs(edge - inner), (values[-1] - values[0]) / 10)
    candidates: list[float | int] = [round(significant(next_value, 2)) if whole else significant(next_value, 2)]
    if outward < 0 and edge > 0:
        candidates.append(int(edge / 2) if whole else significant(edge / 2, 2))
    for candidate in candidates:
        if (candidate - edge) * outward <= 0:
            continue
        if key.startswith("model.params.") and candidate <= 0 < edge:
            continue  # nothing knows whether the user's own setting may be 0: a width may not
        try:
            sweep.experiment.with_overrides({key: candidate})
        except ConfigError:
            continue
        return candidate
    return None

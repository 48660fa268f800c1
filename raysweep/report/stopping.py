"""What early stopping saved, and how often it was wrong: the trials that were audited, one line each, and a few sentences."""

from __future__ import annotations

from raysweep.report.tables import NONE, Table, measured, missing, number
from raysweep.store.audits import Stopping, stopping, wilson
from raysweep.store.results import Results


def stopping_table(results: Results, limit: int = 50) -> Table | None:
    """The audited trials, and as its note what stopping saved; None where nothing was stopped."""
    if results.sweep is None:
        return None
    audited = results.audited
    facts = stopping(results.trials, results.rows, results.ends, audited, results.sweep.experiment.train.epochs)
    if not facts.num_stopped and not facts.num_audited:
        return None
    metric = results.metric
    header = ("trial", "would have ended after", f"{metric} then", "cutoff", f"best {metric}", "ended", "stop was")
    rows = tuple(
        (
            str(trial["trial"]),
            f"epoch {trial['epoch']}",
            measured(trial["value"]),
            measured(trial["cutoff"]),
            measured(trial[metric]),
            f"{trial['status']} after {number(trial['epochs'])} epochs",
            _verdict(trial["ended"], trial["beats_best"], trial["beats_median"]),
        )
        for _, trial in audited.head(limit).iterrows()
    )
    more = f" ({len(audited) - limit} more in the journal.)" if len(audited) > limit else ""
    return Table(header, rows, numeric=frozenset({0, 2, 3, 4}), note=" ".join(sentences(facts)) + more)


def _verdict(ended: object, beats_best: object, beats_median: object) -> str:
    if not ended:
        return NONE
    if beats_best is True or missing(beats_best):
        return "WRONG: it would have been the best"
    return "wrong: better than the median" if beats_median is True else "right"


def sentences(facts: Stopping) -> list[str]:
    """What early stopping saved, how often it was wrong, and what it cost to know."""
    texts = []
    if facts.num_stopped:
        texts.append(
            f"{_trials(facts.num_stopped)} stopped early: {facts.epochs_saved} epochs that were not trained, "
            f"about {_hours(facts.seconds_saved)} at each trial's own pace."
        )
    if not facts.num_audited:
        return [*texts, "Whether that was right is not known; scheduler.audit: 0.1 lets a tenth of them run on, to see."]
    texts.append(
        f"{_trials(facts.num_audited)} audited (ran on): {facts.epochs_spent} epochs more, {_hours(facts.seconds_spent)}."
    )
    if not facts.num_ended:
        return [*texts, "None of them has ended yet, so nothing is known of how often stopping was wrong."]
    texts.append(_rate(facts.beat_best, facts, "ended better than the best trial that was not audited"))
    if facts.beat_median is not None:
        texts.append(_rate(facts.beat_median, facts, "ended better than the median of those that were let through"))
    return texts


def _rate(hits: int, facts: Stopping, what: str) -> str:
    low, high = wilson(hits, facts.num_ended)
    total = facts.num_stopped + facts.num_audited
    return (
        f"{hits} of {facts.num_ended} {what}: {hits / facts.num_ended:.0%} (95 % interval {low:.0%} to {high:.0%}), which "
        f"makes about {hits / facts.num_ended * total:.0f} ({low * total:.0f} to {high * total:.0f}) "
        f"of all {total} that it would have stopped."
    )


def _trials(num: int) -> str:
    return f"{num} trial was" if num == 1 else f"{num} trials were"


def _hours(seconds: float) -> str:
    return f"{number(seconds / 3600, 2)} device-hours"

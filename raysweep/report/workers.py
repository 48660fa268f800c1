"""What happened to the trials' workers: resizes, failures, machines taken back; one line each."""

from __future__ import annotations

from raysweep.report.tables import NONE, Table, duration, shortened
from raysweep.store.results import Results

_NAMES = {"resize": "resized", "failure": "failure", "preemption": "preempted"}


def workers_table(results: Results, limit: int = 50) -> Table:
    """The journal's resize, failure and preemption events, in order; empty where nothing happened.

    `redone` counts steps that were done twice, `pause` is the time from the last step before to the first one after.
    """
    header = ("trial", "what", "workers", "step", "redone", "pause", "why")
    rows = tuple(
        (
            str(event["trial"]),
            _NAMES[event["event"]],
            f"{event['from']} → {NONE if event['to'] is None else event['to']}",
            str(event["step"]),
            str(event["redone_steps"]),
            duration(event["pause_s"]) if event["to"] is not None else NONE,
            shortened(event["why"], 160),
        )
        for event in results.resizes[:limit]
    )
    left_out = len(results.resizes) - len(rows)
    note = f"... {left_out} more in journal.jsonl" if left_out else ""
    return Table(header, rows, numeric=frozenset({0, 3, 4, 5}), note=note)

"""What the report says of workers that were resized, lost or taken back."""

from __future__ import annotations

from contextlib import closing

from report_sweeps import Make, grid_trials

from raysweep.report.build import build_report
from raysweep.report.workers import workers_table
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load


def test_a_quiet_sweep_has_no_such_section(make: Make) -> None:
    directory = make(grid_trials())
    assert workers_table(load(directory)).rows == ()
    build_report(directory)
    assert "What happened to the workers" not in (directory / "report.md").read_text()


def test_each_event_is_a_line_with_what_it_cost(make: Make) -> None:
    directory = make(grid_trials())
    events = [
        ("resize", "room for 2 workers", 1, 2, 19, 0, 11.3),
        ("preemption", "preemption at step 44 (1)", 2, 1, 44, 3, 75.0),
        ("failure", "workers were lost 4 times", 1, None, 50, 0, 0.0),
    ]
    with closing(JournalWriter(directory / "journal.jsonl")) as journal:
        for name, why, before, after, step, redone, pause in events:
            fields = {"from": before, "to": after, "step": step, "redone_steps": redone, "pause_s": pause}
            journal.event(name, trial=3, why=why, **fields)
    table = workers_table(load(directory))
    assert table.rows == (
        ("3", "resized", "1 → 2", "19", "0", "11 s", "room for 2 workers"),
        ("3", "preempted", "2 → 1", "44", "3", "1 min 15 s", "preemption at step 44 (1)"),
        ("3", "failure", "1 → –", "50", "0", "–", "workers were lost 4 times"),
    )
    cut = workers_table(load(directory), limit=2)
    assert (len(cut.rows), cut.note) == (2, "... 1 more in journal.jsonl")
    build_report(directory)
    for page in ("report.md", "report.html"):
        assert "room for 2 workers" in (directory / page).read_text()

"""What a sweep would run, without running it: its trials, what is known of them, how many at once and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from raysweep.cluster.join import available_here, connected, running_cluster
from raysweep.cluster.resources import allocate, concurrency
from raysweep.config import Sweep
from raysweep.report.tables import number, shortened
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, Work, found


def preview(plan: Plan, past: Past | None, todo: Work, at_once: int, why: str) -> tuple[str, Table]:
    """A sentence and a table for people.

    Args:
        plan: the sweep's trials; a search that learns has only those that are known.
        past: what the journal knows; None for a new sweep.
        todo: which of them are done and which run.
        at_once: how many would run at a time.
        why: that many.
    """
    epochs = plan.sweep.experiment.train.epochs
    unknown = plan.num_planned - len(plan.trials)
    parts = [f"{len(todo.to_run)} to run", *([f"{len(todo.done)} not"] if todo.done else [])]
    parts += [f"{unknown} that the search will think of"] if unknown else []
    text = f"{plan.num_planned} trials x {epochs} epochs: {', '.join(parts)}; {at_once} at a time ({why}). Nothing was trained."
    names = plan.sweep.short_names()
    table = Table("trial", *names.values(), "parameters", "what")
    for trial in sorted(plan.trials, key=lambda t: t.number):
        settings = [number(trial.overrides.get(key)) for key in names]
        parameters = "" if trial.infeasible else f"{trial.model.parameters:,}"
        table.add_row(str(trial.number), *settings, parameters, _what(trial, past, epochs))
    return text, table


def _what(trial: PlannedTrial, past: Past | None, epochs: int) -> str:
    if trial.infeasible:
        return f"infeasible: {shortened(trial.infeasible, 100)}"
    known = past.trials.get(trial.key) if past else None
    if known is None or not (known.attempts or known.status):
        return "new"
    stands = known.status and not (known.status == "completed" and known.last_epoch < epochs)
    if stands and known.status not in ("interrupted", "budget"):
        return f"{known.status} after epoch {known.last_epoch}"
    return f"goes on after epoch {known.last_epoch}" if known.last_epoch else "begun, no epoch yet"


def preview_sweep(
    sweep: Sweep,
    *,
    storage: Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> tuple[str, Table]:
    """What run_sweep would run: a sentence and a table; nothing is trained and nothing is written.

    Raises:
        RaysweepError: as run_sweep.
    """
    plan, past, todo = found(sweep, (storage or Path(sweep.storage)).expanduser(), fresh, retry_failed, say)
    if running_cluster() is None:
        available = available_here()
    else:
        with connected() as cluster:
            available = cluster.available
    allocation = allocate(sweep.experiment.scale, available, share_cpus=False)
    for note in plan.notes:
        say(f"note: {note}")
    return preview(plan, past, todo, *concurrency(allocation, available, sweep.search.max_concurrent))

"""What a sweep would run and cost, without running it: its trials, what is known of them, how many at once and why, how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from raysweep.cluster.join import available_here, connected, running_cluster
from raysweep.cluster.resources import allocate, carried, concurrency, largest
from raysweep.config import Sweep
from raysweep.console import shown_path
from raysweep.report.answer import trial_list
from raysweep.report.tables import number
from raysweep.store.prediction import prediction_file, write_prediction
from raysweep.store.remote import open_place
from raysweep.tune.cost.calibrate import calibrate
from raysweep.tune.cost.estimate import AROUND_S, Calibrate, estimate
from raysweep.tune.cost.left import what_for
from raysweep.tune.cost.sizes import Cost
from raysweep.tune.describe import to_come
from raysweep.tune.engine import check_workers
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, PastTrial, Work, found
from raysweep.tune.shares import fair_shares

_MOST_REASONS = 5


def preview(
    plan: Plan, past: Past | None, todo: Work, at_once: int, why: str, costs: Mapping[str, Cost] = {}
) -> tuple[str, Table]:
    """A sentence and a table for people.

    Args:
        plan: the sweep's trials; a search that learns has only those that are known.
        past: what the journal knows; None for a new sweep.
        todo: which of them are done and which run.
        at_once: how many would run at a time.
        why: that many.
        costs: of the trials that run, by key, as far as they are known.
    """
    epochs = plan.sweep.experiment.train.epochs
    ended, infeasible = sum(not t.infeasible for t in todo.done), sum(bool(t.infeasible) for t in todo.done)
    counts = {"to run": len(todo.to_run), "ended": ended, "infeasible": infeasible, **to_come(plan)}
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "to run")
    text = f"{plan.num_planned} trials x {epochs} epochs: {parts}; {at_once} at a time ({why}). No trial was trained."
    text = "\n".join([text, *_infeasible(plan)])
    names, done = plan.sweep.short_names(), {trial.key for trial in todo.done}
    table = Table("trial", *names.values(), "parameters", *(("memory", "s / epoch") if costs else ()), "what")
    for trial in sorted(plan.trials, key=lambda t: t.number):
        settings = [number(trial.overrides.get(key)) for key in names]
        parameters = "" if trial.infeasible else f"{trial.model.parameters:,}"
        cost = _cost(costs.get(trial.key)) if costs else ()
        known = past.trials.get(trial.key) if past else None
        table.add_row(str(trial.number), *settings, parameters, *cost, _what(trial, known, trial.key in done))
    return text, table


def _cost(cost: Cost | None) -> tuple[str, str]:
    if cost is None:
        return "", ""
    about = "" if cost.measured else "about "
    return f"{about}{cost.memory_bytes / 2**20:,.0f} MiB", f"{about}{cost.epoch_s:.3g}"


def _infeasible(plan: Plan) -> list[str]:
    """A line for each reason why trials cannot be trained, the most frequent first: whole, its end says what to change."""
    by_reason: dict[str, list[int]] = {}
    for trial in plan.trials:
        if trial.infeasible:
            by_reason.setdefault(" ".join(trial.infeasible.split()).rstrip("."), []).append(trial.number)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    lines = [f"Infeasible ({trial_list(tuple(numbers))}): {why}." for why, numbers in ordered[:_MOST_REASONS]]
    rest = sum(len(numbers) for _, numbers in ordered[_MOST_REASONS:])
    return [*lines, f"... and {rest} more infeasible trials."] if rest else lines


def _what(trial: PlannedTrial, known: PastTrial | None, is_done: bool) -> str:
    if trial.infeasible:
        return "infeasible"
    if known is None or not (known.attempts or known.status):
        return "new"
    if is_done:
        return f"{known.status} after epoch {known.last_epoch}"
    return f"goes on after epoch {known.last_epoch}" if known.last_epoch else "begun, no epoch yet"


def preview_sweep(
    sweep: Sweep,
    *,
    storage: str | Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda _text: None,
    measured: Calibrate = calibrate,
) -> tuple[str, Table]:
    """What run_sweep would run and cost: sentences and a table.

    A few steps of each model size are trained in a temporary directory, where the trials would run. What is written is
    one file beside the sweep's directory, the prediction that its next start puts into the journal, and a journal that was
    fetched.

    Raises:
        RaysweepError: as run_sweep.
    """
    place = open_place(storage or sweep.storage, sweep.working_directory, say)
    place.check()
    place.fetch(sweep.name)
    plan, past, todo = found(sweep, place.local, fresh, retry_failed, say)
    for note in plan.notes:
        say(f"note: {note}")
    limit, scale = sweep.search.max_concurrent, sweep.experiment.scale
    nothing_left = past is not None and not todo.to_run and len(plan.trials) >= plan.num_planned
    if running_cluster() is None:
        here = available_here()
        allocation = allocate(scale, here, share_cpus=False)
        check_workers(plan, allocation)
        if nothing_left:
            return _nothing_left(preview(plan, past, todo, *concurrency(allocation, here, limit)))
    began = time.monotonic()
    with connected(poll_s=scale.poll_s) as cluster:
        started_s = time.monotonic() - began
        allocation = allocate(scale, cluster.available, share_cpus=False)
        at_once, why = concurrency(allocation, cluster.available, limit)
        if nothing_left:
            return _nothing_left(preview(plan, past, todo, at_once, why))
        allocation = largest(allocation, cluster.available)
        low, high = allocation.workers, allocation.max_workers
        shares = fair_shares(carried(allocation, cluster.available), at_once, plan.num_planned, [], low, high)
        shared = replace(allocation, max_workers=shares.others)
        cost = estimate(plan, past, todo, shared, cluster.available, at_once, high > 1, measured)
    text, table = preview(plan, past, todo, at_once, why, cost.costs)
    for note in cost.calibration.notes:
        say(f"note: {note}")
    around_s = started_s + AROUND_S
    text = f"{text}\n{cost.describe(around_s)}"
    if cost.prediction is not None:
        key = what_for(plan, past, todo, allocation, at_once)
        write_prediction(place.local, sweep.name, key, {**cost.prediction.event(), "around_s": round(around_s, 1)})
        written = shown_path(prediction_file(place.local, sweep.name))
        text += f"\nThe report sets this beside what the sweep takes; until then it is in {written}."
    return text, table


def _nothing_left(shown: tuple[str, Table]) -> tuple[str, Table]:
    text, table = shown
    return f"{text}\nNothing is left to train: 0 s.", table

"""One sweep from start to finish: plan, cluster, Ray Tune, journal. What a trial does is in trial.py."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysweep.cluster.capacity import free_leftovers
from raysweep.cluster.join import Cluster, available_here, connected, environment, running_cluster
from raysweep.cluster.resources import Allocation, allocate, concurrency, largest
from raysweep.cluster.shared import check_shared
from raysweep.config import Sweep
from raysweep.errors import CheckpointError
from raysweep.store.directory import SweepDirectory, check_storage
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load
from raysweep.train.prepare import Prepared, check_scale
from raysweep.train.run import Say, manifest, write_examples
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.recorder import SweepRecorder, TrialState
from raysweep.tune.resume import Past, Work, check_unchanged, describe, found
from raysweep.tune.seeds import is_unseen

if TYPE_CHECKING:
    from raysweep.tune.schedulers import RecordingScheduler


@dataclass(frozen=True)
class Finished:
    """How a sweep ended: completed, interrupted or budget; and how each trial did."""

    directory: SweepDirectory
    status: str
    trial_statuses: list[str]

    @property
    def exit_code(self) -> int:
        """0; 1 where every trial failed or there was none; 130 where it was interrupted."""
        if self.status == "interrupted":
            return 130
        return 1 if all(s == "failed" for s in self.trial_statuses) else 0


class Watcher:
    """Who looks on while a sweep runs; progress.py shows it, the base class ignores it."""

    def begin(self, recorder: SweepRecorder) -> None:
        """The trials are about to start."""

    def changed(self, state: TrialState) -> None:
        """A trial has started, finished an epoch, or ended."""

    def end(self) -> None:
        """No trial runs any more."""


def run_sweep(
    sweep: Sweep,
    *,
    storage: Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    verbose: bool = False,
    say: Say = lambda _text: None,
    watcher: Watcher | None = None,
) -> Finished:
    """Run all trials of a sweep and leave a directory that holds all of it.

    Where the directory is there already, the sweep goes on: what has ended is not trained again.

    Args:
        sweep: what to run.
        storage: instead of sweep.storage.
        fresh: start anew in a new directory; nothing is deleted.
        retry_failed: run failed trials again, from their checkpoints.
        verbose: let Ray write to the terminal.
        say: takes lines for people.
        watcher: looks on.

    Raises:
        RaysweepError: refused before anything was started or written.
    """
    storage = (storage or Path(sweep.storage)).expanduser()
    check_storage(storage)
    plan, past, todo = found(sweep, storage, fresh, retry_failed, say)
    if past is not None:
        say(describe(plan, past, todo, retry_failed))
        if not todo.to_run and len(plan.trials) >= plan.num_planned and not past.untold:
            statuses = [past.trials[t.key].status if t.key in past.trials else "infeasible" for t in plan.trials]
            return Finished(past.directory, "completed", statuses)
    if running_cluster() is None:
        _check(plan, allocate(sweep.experiment.scale, available_here(), share_cpus=False))
    with connected(poll_s=sweep.experiment.scale.poll_s, verbose=verbose) as cluster:
        allocation = allocate(sweep.experiment.scale, cluster.available, share_cpus=False)
        _check(plan, allocation)
        say(cluster.describe())
        for note in plan.notes:
            say(f"note: {note}")
        directory = past.directory if past else SweepDirectory.create(storage, sweep.name)
        with directory.locked():
            if past is not None:
                check_unchanged(past)
            return _run(_Job(plan, directory, past, todo), cluster, allocation, verbose, say, watcher or Watcher())


@dataclass(frozen=True)
class _Job:
    """What runs, where, and what was there before."""

    plan: Plan
    directory: SweepDirectory
    past: Past | None
    todo: Work


def _check(plan: Plan, allocation: Allocation) -> None:
    check_scale(plan.prepared.model, allocation)
    for trial in plan.trials:
        check_scale(trial.model, allocation)


def _run(job: _Job, cluster: Cluster, allocation: Allocation, verbose: bool, say: Say, watcher: Watcher) -> Finished:
    plan, directory, sweep = job.plan, job.directory, job.plan.sweep
    at_once, why = concurrency(allocation, cluster.available, sweep.search.max_concurrent)
    allocation = largest(allocation, cluster.available)
    check_shared(directory, cluster)
    directory.write_manifest(manifest())
    epochs = sweep.experiment.train.epochs
    say(f"{plan.num_planned} trials x {epochs} epochs, {at_once} at a time ({why}); {directory.path.name}/")
    journal = JournalWriter(directory.journal)
    try:
        content = sweep.model_dump(mode="json", exclude_unset=True)
        experiment = sweep.experiment.model_dump(mode="json", exclude_unset=True)
        journal.event(
            "start", sweep=content, experiment=experiment, data=plan.prepared.facts, planned=plan.num_planned, at_once=at_once
        )
        to_run = [trial.key for trial in job.todo.to_run]
        if sweep.scheduler.name == "pbt":
            from raysweep.tune.population import PopulationRecorder

            recorder: SweepRecorder = PopulationRecorder(
                plan, journal, watcher.changed, past=job.past, to_run=to_run, directory=directory
            )
        else:
            recorder = SweepRecorder(plan, journal, watcher.changed, past=job.past, to_run=to_run)
        num_notes = len(plan.notes)
        watcher.begin(recorder)
        try:
            status = _tune(job, recorder, allocation, at_once, verbose, say)
        except Exception:
            if journal.broken is not None:
                raise journal.broken from None  # Ray Tune has made an error of its own of it
            raise
        finally:
            watcher.end()
        for note in plan.notes[num_notes:]:
            say(f"note: {note}")
        if status != "completed":
            recorder.end_rest(status, recorder.why_ended)
        recorder.end_rest("failed", "Ray Tune ended the trial without saying why")
        _write_best_examples(plan, recorder, directory, say)
        journal.event("finish", status=status)
    finally:
        journal.close()
    return Finished(directory, status, recorder.statuses())


def _write_best_examples(plan: Plan, recorder: SweepRecorder, directory: SweepDirectory, say: Say) -> None:
    best = recorder.best()
    if best is None:
        return
    if plan.sweep.search.seeds > 1:  # the best configuration is the one with the best mean
        row = load(directory.path).best
        best = best if row is None else recorder.states[int(row["trial"])]
    experiment = plan.experiment(best.trial.overrides)
    prepared = Prepared(experiment, plan.dataset(experiment), plan.prepared.facts, best.trial.key, best.trial.model)
    try:
        write_examples(directory.trial(best.trial.key), prepared)
    except CheckpointError as error:
        say(f"no example images: {error}")


def _tune(
    job: _Job,
    recorder: SweepRecorder,
    allocation: Allocation,
    at_once: int,
    verbose: bool,
    say: Say,
) -> str:
    from ray import tune

    from raysweep.tune.callback import JournalCallback, SweepEnd
    from raysweep.tune.population import PopulationRecorder, PopulationSearcher
    from raysweep.tune.schedulers import RecordingScheduler
    from raysweep.tune.search import ListedSearcher, searcher
    from raysweep.tune.shares import ShareCallback
    from raysweep.tune.trial import run_trial

    plan, directory, sweep = job.plan, job.directory, job.plan.sweep
    scratch = directory.path / ".ray"
    scheduler = RecordingScheduler(sweep, recorder)
    to_run = _replayed(job, scheduler, recorder)
    if not to_run and len(plan.trials) >= plan.num_planned:
        return "completed"
    trainable: Callable[[dict[str, Any]], None] = functools.partial(
        run_trial,
        experiment_json=sweep.experiment.model_dump_json(exclude_unset=True),
        directory=str(directory.path),
        started_in=str(Path.cwd()),
        allocation=allocation,
    )
    if allocation.max_workers == 1:
        resources: dict[str, float] = {"CPU": allocation.cpus, "GPU": allocation.gpus}
    else:
        # The workers hold the CPUs. A trial that holds none is refused, and one that holds any can keep its own workers
        # from starting, so it holds a little memory.
        resources = {"CPU": 0, "memory": 1024}
    look_s = sweep.experiment.scale.resize_check_s
    sharing = [ShareCallback(directory.path, recorder, allocation, at_once, look_s)] if allocation.is_elastic else []
    if isinstance(recorder, PopulationRecorder):
        search_alg: Any = PopulationSearcher(recorder)
    else:
        search_alg = searcher(plan, to_run, recorder.assigned, recorder.objective, recorder)
    end = SweepEnd(sweep.budget, recorder)
    tuner = tune.Tuner(
        tune.with_resources(_named(trainable), resources),
        tune_config=tune.TuneConfig(
            search_alg=search_alg,
            scheduler=scheduler,
            num_samples=len(to_run) if isinstance(search_alg, ListedSearcher) else -1,
            max_concurrent_trials=at_once,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{os.urandom(4).hex()}",
            storage_path=str(scratch),
            callbacks=[JournalCallback(recorder), *sharing],
            stop=end,
            verbose=3 if verbose else 0,
            # Errors of the user's are caught in the trial: what is left to retry is a lost actor.
            failure_config=tune.FailureConfig(max_failures=sweep.experiment.scale.max_failures),
        ),
    )
    try:
        # A trial's report of its end carries no metric, and Ctrl-C is ours to handle.
        with environment(TUNE_DISABLE_STRICT_METRIC_CHECKING="1", TUNE_DISABLE_SIGINT_HANDLER="1"), end.on_interrupt(say):
            tuner.fit()
    except KeyboardInterrupt:
        recorder.why_ended = "interrupted"
        return "interrupted"
    finally:
        for shares in sharing:
            shares.close()
        shutil.rmtree(scratch, ignore_errors=True)
        if allocation.max_workers > 1:
            # Ray Tune ends its last actors at once, and their workers' CPUs would stay taken.
            free_leftovers(trial.key for trial in plan.trials)
    done = all(state.has_ended for state in recorder.states.values()) and len(recorder.states) >= plan.num_planned
    done = done and not plan.has_contest
    return end.reason if end.reason and not done else "completed"


def _replayed(job: _Job, scheduler: RecordingScheduler, recorder: SweepRecorder) -> list[PlannedTrial]:
    """Show the scheduler what it saw before a restart; the trials that are left to run.

    A trial whose newest row it stops, although the journal ends before that, is ended without being trained on.
    """
    if job.past is None:
        return list(job.todo.to_run)
    to_run = {trial.key for trial in job.todo.to_run}
    statuses = {key: "" if key in to_run else trial.status for key, trial in job.past.trials.items()}
    numbers = {key: trial.number for key, trial in job.past.trials.items()}
    # Further seeds of a contest are not shown to the scheduler.
    unseen = {key for key, trial in job.past.trials.items() if is_unseen(job.plan.sweep, trial.overrides)}
    told = [(key, row) for key, row in job.past.told if key not in unseen]
    stops = scheduler.replay(told, statuses, numbers=numbers, audited=job.past.audited)
    for decision in job.past.untold:
        recorder.decided(decision["trial"], {name: value for name, value in decision.items() if name != "trial"})
    for trial in job.todo.to_run:
        if trial.key in stops:
            recorder.stopped(trial.number, stops[trial.key])
        if trial.key in scheduler.found_audits:
            recorder.decided(trial.number, {"action": "audit", **scheduler.found_audits[trial.key]})
    return [trial for trial in job.todo.to_run if trial.key not in stops]


def _named(trainable: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def trial(config: dict[str, Any]) -> None:
        trainable(config)

    return trial

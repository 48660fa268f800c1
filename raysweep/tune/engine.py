"""One sweep from start to finish: plan, cluster, journal. What Ray Tune is given is tuning.py's, what a trial does trial.py's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raysweep.cluster.join import Cluster, available_here, connected, running_cluster
from raysweep.cluster.resources import Allocation, allocate, concurrency, largest
from raysweep.cluster.shared import check_shared
from raysweep.config import Sweep
from raysweep.console import shown_path
from raysweep.errors import CheckpointError, StoreError
from raysweep.store.directory import SweepDirectory, check_storage, remove_leftovers
from raysweep.store.disk import disk_error
from raysweep.store.journal import JournalWriter
from raysweep.store.prediction import read_prediction
from raysweep.store.remote import Place, open_place
from raysweep.store.results import load
from raysweep.train.prepare import Prepared, check_scale
from raysweep.train.run import Say, manifest, write_examples
from raysweep.tune.cost.left import what_for
from raysweep.tune.describe import describe
from raysweep.tune.job import Job
from raysweep.tune.own import OwnCodeError
from raysweep.tune.plan import Plan
from raysweep.tune.recorder import SweepRecorder, TrialState
from raysweep.tune.resume import found, is_over


@dataclass(frozen=True)
class Finished:
    """How a sweep ended: completed, interrupted or budget; and how each trial did."""

    directory: SweepDirectory
    status: str
    trial_statuses: list[str]
    place: Place

    @property
    def exit_code(self) -> int:
        """0; 1 where every trial that could be trained failed, or storage lacks the last state; 130 where it was interrupted."""
        if self.status == "interrupted":
            return 130
        return 1 if self.place.unsent or all(s in ("failed", "infeasible") for s in self.trial_statuses) else 0


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
    storage: str | Path | None = None,
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
        DiskError: the disk failed; the sweep has ended and can be gone on with.
    """
    place = open_place(storage or sweep.storage, sweep.working_directory, say)
    place.check()
    place.fetch(sweep.name)
    plan, past, todo = found(sweep, place.local, fresh, retry_failed, say)
    if past is not None:
        past.directory.check_free()
        say(describe(plan, past, todo, retry_failed))
        if is_over(plan, past, todo):
            statuses = [past.trials[t.key].status if t.key in past.trials else "infeasible" for t in plan.trials]
            place.settle(past.directory)
            return Finished(past.directory, "completed", statuses, place)
        check_storage(past.directory.path)
    if running_cluster() is None:
        check_workers(plan, allocate(sweep.experiment.scale, available_here(), share_cpus=False))
    with connected(poll_s=sweep.experiment.scale.poll_s, verbose=verbose) as cluster:
        allocation = allocate(sweep.experiment.scale, cluster.available, share_cpus=False)
        check_workers(plan, allocation)
        say(cluster.describe())
        for note in plan.notes:
            say(f"note: {note}")
        directory = past.directory if past else SweepDirectory.create(place.local, sweep.name)
        # Members of a population copy each other, so all of them are needed.
        needed = plan.trials if sweep.scheduler.name == "pbt" else todo.to_run
        with directory.locked(), place.kept(directory, [trial.key for trial in needed], is_new=past is None):
            if past is not None:
                past.directory.check_unchanged(past.size)
            return _run(Job(plan, directory, past, todo, place), cluster, allocation, verbose, say, watcher or Watcher())


def check_workers(plan: Plan, allocation: Allocation) -> None:
    """Refuse models that would train otherwise on the workers of a trial; raises as check_scale()."""
    check_scale(plan.prepared.model, allocation)
    for trial in plan.trials:
        check_scale(trial.model, allocation)


def _run(job: Job, cluster: Cluster, allocation: Allocation, verbose: bool, say: Say, watcher: Watcher) -> Finished:
    from raysweep.tune.tuning import run_trials

    plan, directory, sweep = job.plan, job.directory, job.plan.sweep
    at_once, why = concurrency(allocation, cluster.available, sweep.search.max_concurrent)
    allocation = largest(allocation, cluster.available)
    check_shared(directory, cluster)
    directory.write_manifest(manifest())
    for trial in job.todo.to_run:
        if job.past is not None and trial.key in job.past.trials:
            remove_leftovers(directory.trial(trial.key))
    epochs = sweep.experiment.train.epochs
    say(f"{plan.num_planned} trials x {epochs} epochs, {at_once} at a time ({why}); {shown_path(directory.path)}/")
    predicted = read_prediction(directory.path.parent, sweep.name, what_for(plan, job.past, job.todo, allocation, at_once))
    journal = JournalWriter(directory.journal)
    recorder: SweepRecorder | None = None
    try:
        content = sweep.model_dump(mode="json", exclude_unset=True)
        experiment = sweep.experiment.model_dump(mode="json", exclude_unset=True)
        journal.event(
            "start", sweep=content, experiment=experiment, data=plan.prepared.facts, planned=plan.num_planned, at_once=at_once,
            predicted=predicted,
        )  # fmt: skip
        to_run = [trial.key for trial in job.todo.to_run]
        if sweep.scheduler.name == "pbt":
            from raysweep.tune.population import PopulationRecorder

            recorder = PopulationRecorder(plan, journal, watcher.changed, past=job.past, to_run=to_run, directory=directory)
        else:
            recorder = SweepRecorder(plan, journal, watcher.changed, past=job.past, to_run=to_run)
        num_notes = len(plan.notes)
        watcher.begin(recorder)
        try:
            status = run_trials(job, recorder, allocation, at_once, verbose, say)
        except OwnCodeError:
            recorder.end_rest("interrupted", "a searcher or scheduler of the user's failed")
            journal.event("finish", status="failed")
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
    except Exception as error:
        # Ray Tune may have made an error of its own of what the recorder knows.
        failure = (recorder.fault if recorder else journal.broken) or disk_error(error, directory.path)
        if failure is None:
            raise
        _end_unfinished(journal, recorder)
        raise type(failure)(
            f"{failure}. The sweep has ended, what was written before is kept, and the same command goes on with what is missing"
        ) from None
    finally:
        journal.close()
    return Finished(directory, status, recorder.statuses(), job.place)


def _end_unfinished(journal: JournalWriter, recorder: SweepRecorder | None) -> None:
    """Write that the disk ended a sweep, as far as it takes that: for going on the journal needs none of it."""
    with suppress(StoreError):
        if recorder is not None:
            recorder.end_rest("interrupted", "the disk failed")
        journal.event("finish", status="interrupted")


def _write_best_examples(plan: Plan, recorder: SweepRecorder, directory: SweepDirectory, say: Say) -> None:
    best = recorder.best()
    if best is None:
        return
    if plan.sweep.search.seeds > 1:  # the best configuration is the one with the best mean
        row = load(directory.path).best
        # It may be one that the plan no longer has: its images are those of the time when it had it.
        best = best if row is None else recorder.states.get(int(row["trial"]), best)
    experiment = plan.experiment(best.trial.overrides)
    prepared = Prepared(experiment, plan.dataset(experiment), plan.prepared.facts, best.trial.key, best.trial.model)
    try:
        write_examples(directory.trial(best.trial.key), prepared)
    except (CheckpointError, OSError) as error:
        say(f"no example images: {error}")

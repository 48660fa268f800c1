"""One sweep from start to finish: plan, cluster, Ray Tune, journal. What a trial does is in trial.py."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.cluster.join import Cluster, available_here, connected, environment, running_cluster
from raysweep.cluster.resources import Allocation, allocate, concurrency, workers_per_trial
from raysweep.cluster.shared import check_shared
from raysweep.config import Sweep
from raysweep.errors import CheckpointError
from raysweep.store.directory import SweepDirectory, check_storage
from raysweep.store.journal import JournalWriter
from raysweep.train.prepare import Prepared, check_scale
from raysweep.train.run import Say, manifest, write_examples
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.recorder import SweepRecorder, TrialState


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
    verbose: bool = False,
    say: Say = lambda _text: None,
    watcher: Watcher | None = None,
) -> Finished:
    """Run all trials of a sweep and leave a directory that holds all of it.

    Args:
        sweep: what to run.
        storage: instead of sweep.storage.
        verbose: let Ray write to the terminal.
        say: takes lines for people.
        watcher: looks on.

    Raises:
        RaysweepError: refused before anything was started or written.
    """
    storage = (storage or Path(sweep.storage)).expanduser()
    check_storage(storage)
    plan = make_plan(sweep)
    if running_cluster() is None:
        _check(plan, allocate(sweep.experiment.scale, available_here(), share_cpus=False))
    with connected(poll_s=sweep.experiment.scale.poll_s, verbose=verbose) as cluster:
        allocation = allocate(sweep.experiment.scale, cluster.available, share_cpus=False)
        _check(plan, allocation)
        say(cluster.describe())
        for note in plan.notes:
            say(f"note: {note}")
        return _run(plan, cluster, allocation, storage, verbose, say, watcher or Watcher())


def _check(plan: Plan, allocation: Allocation) -> None:
    check_scale(plan.prepared.model, allocation)
    for trial in plan.trials:
        check_scale(trial.model, allocation)


def _run(
    plan: Plan, cluster: Cluster, allocation: Allocation, storage: Path, verbose: bool, say: Say, watcher: Watcher
) -> Finished:
    sweep = plan.sweep
    at_once, why = concurrency(allocation, cluster.available, sweep.search.max_concurrent)
    allocation = workers_per_trial(allocation, cluster.available, min(at_once, plan.num_planned))
    directory = SweepDirectory.create(storage, sweep.name)
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
        recorder = SweepRecorder(plan, journal, watcher.changed)
        num_notes = len(plan.notes)
        watcher.begin(recorder)
        try:
            status = _tune(plan, recorder, directory, allocation, at_once, verbose, say)
        except Exception:
            if journal.broken is not None:
                raise journal.broken from None  # Ray Tune has made an error of its own of it
            raise
        finally:
            watcher.end()
        for note in plan.notes[num_notes:]:
            say(f"note: {note}")
        if status != "completed":
            recorder.end_rest(status, "interrupted" if status == "interrupted" else "budget.wall_time_s was spent")
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
    experiment = plan.experiment(best.trial.overrides)
    prepared = Prepared(experiment, plan.dataset(experiment), plan.prepared.facts, best.trial.key, best.trial.model)
    try:
        write_examples(directory.trial(best.trial.key), prepared)
    except CheckpointError as error:
        say(f"no example images: {error}")


def _tune(
    plan: Plan,
    recorder: SweepRecorder,
    directory: SweepDirectory,
    allocation: Allocation,
    at_once: int,
    verbose: bool,
    say: Say,
) -> str:
    from ray import tune

    from raysweep.tune.callback import JournalCallback, SweepEnd
    from raysweep.tune.schedulers import RecordingScheduler
    from raysweep.tune.search import searcher
    from raysweep.tune.trial import run_trial

    sweep, scratch = plan.sweep, directory.path / ".ray"
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
    end = SweepEnd(sweep.budget.wall_time_s)
    tuner = tune.Tuner(
        tune.with_resources(_named(trainable), resources),
        tune_config=tune.TuneConfig(
            search_alg=searcher(plan, recorder.assigned, recorder.objective),
            scheduler=RecordingScheduler(sweep, recorder),
            num_samples=-1 if sweep.search.algorithm == "tpe" else plan.num_planned,
            max_concurrent_trials=at_once,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{os.urandom(4).hex()}",
            storage_path=str(scratch),
            callbacks=[JournalCallback(recorder)],
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
        return "interrupted"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    done = all(state.has_ended for state in recorder.states.values()) and len(recorder.states) >= plan.num_planned
    return end.reason if end.reason and not done else "completed"


def _named(trainable: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def trial(config: dict[str, Any]) -> None:
        trainable(config)

    return trial

"""Ray Tune runs a job's trials: what it is given, and what its scheduler is shown of the time before a restart."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from raysweep.cluster.capacity import free_leftovers
from raysweep.cluster.join import environment
from raysweep.cluster.resources import Allocation
from raysweep.store.directory import SCRATCH
from raysweep.train.run import Say
from raysweep.tune.callback import JournalCallback, SweepEnd, TuneLines
from raysweep.tune.ending import EndWorkers
from raysweep.tune.job import Job
from raysweep.tune.own import fault, raise_fault
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.population import PopulationRecorder, PopulationSearcher
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import Past, Work
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.search import ListedSearcher, searcher
from raysweep.tune.seeds import is_unseen
from raysweep.tune.shares import ShareCallback
from raysweep.tune.trial import run_trial


def run_trials(
    job: Job,
    recorder: SweepRecorder,
    allocation: Allocation,
    at_once: int,
    verbose: bool,
    say: Say,
) -> str:
    """Let Ray Tune run a job's trials, on the cluster that this process is connected to; blocks until none runs any more.

    Args:
        job: what runs.
        recorder: told all that happens.
        allocation: what a trial holds.
        at_once: trials at a time.
        verbose: let Ray write to the terminal.
        say: takes lines for people.

    Returns:
        completed, interrupted or budget.

    Raises:
        OwnCodeError: a searcher or scheduler of the user's failed.
        StoreError: the disk failed, or the journal cannot be written.
    """
    plan, directory, sweep = job.plan, job.directory, job.plan.sweep
    scratch = directory.path / SCRATCH
    scheduler = RecordingScheduler(sweep, recorder)
    to_run = replayed(plan, job.past, job.todo, scheduler, recorder)
    if isinstance(recorder, PopulationRecorder):
        search: Any = PopulationSearcher(recorder)
    else:
        search = searcher(plan, to_run, recorder.assigned, recorder.objective, recorder)
    raise_fault(scheduler, search)
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
    ending = [EndWorkers(directory.path / "trials")] if allocation.max_workers > 1 else []
    sharing = [ShareCallback(directory.path, recorder, allocation, at_once, look_s)] if allocation.is_elastic else []
    end = SweepEnd(sweep.budget, recorder, fault=lambda: fault(scheduler, search, recorder))
    if end.stop_all():  # spent or reached before this start: Ray Tune would look only when trials run
        return str(end.reason)
    tuner = tune.Tuner(
        tune.with_resources(_named(trainable), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=scheduler,
            num_samples=len(to_run) if isinstance(search, ListedSearcher) else -1,
            max_concurrent_trials=at_once,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{os.urandom(4).hex()}",
            storage_path=str(scratch),
            callbacks=[JournalCallback(recorder), TuneLines(), *ending, *sharing],
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
    raise_fault(scheduler, search, recorder)
    done = recorder.num_ended >= max(len(recorder.states), plan.num_planned) and not plan.has_contest
    return end.reason if end.reason and not done else "completed"


def replayed(
    plan: Plan, past: Past | None, todo: Work, scheduler: RecordingScheduler, recorder: SweepRecorder
) -> list[PlannedTrial]:
    """Show the scheduler what it saw before a restart; the trials that are left to run.

    A trial whose newest row it stops, although the journal ends before that, is ended without being trained on.
    """
    if past is None:
        return list(todo.to_run)
    to_run = {trial.key for trial in todo.to_run}
    statuses = {key: "" if key in to_run else trial.status for key, trial in past.trials.items()}
    numbers = {key: trial.number for key, trial in past.trials.items()}
    # Further seeds of a contest are not shown to the scheduler.
    unseen = {key for key, trial in past.trials.items() if is_unseen(plan.sweep, trial.overrides)}
    told = [(key, row) for key, row in past.told if key not in unseen]
    stops = scheduler.replay(told, statuses, numbers=numbers, audited=past.audited)
    for decision in past.untold:
        recorder.decided(decision["trial"], {name: value for name, value in decision.items() if name != "trial"})
    for trial in todo.to_run:
        if trial.key in stops:
            recorder.stopped(trial.number, stops[trial.key])
        if trial.key in scheduler.found_audits:
            recorder.decided(trial.number, {"action": "audit", **scheduler.found_audits[trial.key]})
    return [trial for trial in todo.to_run if trial.key not in stops]


def _named(trainable: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def trial(config: dict[str, Any]) -> None:
        trainable(config)

    return trial

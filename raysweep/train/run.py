"""One training run from its driver: checks, workers, journal. A run's directory is that of a sweep with one trial."""

from __future__ import annotations

import io
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from raysweep import __version__
from raysweep.cluster.join import Cluster, available_here, connected, running_cluster
from raysweep.cluster.resources import Allocation, Available, allocate
from raysweep.cluster.shared import check_shared
from raysweep.errors import ClusterError, DiskError, RaysweepError, StoreError, TrialError
from raysweep.experiment import Experiment
from raysweep.store.directory import SweepDirectory, check_storage, remove_leftovers, write_atomically
from raysweep.store.disk import disk_error
from raysweep.store.journal import JournalWriter
from raysweep.store.remote import Place, open_place
from raysweep.train import checkpoint
from raysweep.train.again import Earlier, run_to_resume, runs
from raysweep.train.attempts import Event
from raysweep.train.evaluate import example_images
from raysweep.train.here import fit_here
from raysweep.train.prepare import Prepared, check_scale, prepare
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row

Say = Callable[[str], None]


def manifest() -> dict[str, Any]:
    """What a run or a sweep ran on."""
    return {
        "raysweep": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "command": sys.argv,
    }


def write_examples(directory: Path, prepared: Prepared) -> None:
    """Put a few validation images and what the best weights make of them into the trial's directory.

    Raises:
        CheckpointError: best.pt is missing or damaged.
    """
    images = example_images(checkpoint.load_model(directory / "best.pt"), prepared.dataset, prepared.experiment)
    content = io.BytesIO()
    np.savez_compressed(content, **images)  # type: ignore[arg-type]
    write_atomically(directory / "samples.npz", content.getvalue())


class Trained(NamedTuple):
    """What a run has left: its directory, how it ended, and the place that it is kept at."""

    directory: SweepDirectory
    outcome: Outcome
    place: Place


def run(
    experiment: Experiment,
    *,
    storage: str | Path,
    working_directory: str = "results",
    name: str = "train",
    local: bool = False,
    resume: bool = False,
    verbose: bool = False,
    say: Say = lambda _text: None,
    on_row: Callable[[Row], None] = lambda _row: None,
) -> Trained:
    """Train once, on Ray's workers or (local) in this process, and leave a directory that holds all of it.

    Args:
        experiment: what to train.
        storage: the directory that the run's own directory is made in, or a URI that it is copied to.
        working_directory: where the directory is made, if `storage` is a URI.
        name: of the run's directory; a number is added where it exists.
        local: no Ray, one worker, in this process.
        resume: go on with the newest run of that name, from its newest checkpoint.
        verbose: let Ray write to the terminal.
        say: takes lines for people.
        on_row: takes each epoch's row.

    Raises:
        RaysweepError: refused before anything was started or written; or (TrialError) training failed, which the
            journal has too.
    """
    place = open_place(storage, working_directory, say)
    place.check()
    prepared = prepare(experiment)
    place.fetch(name)
    earlier = run_to_resume(place.local, name, prepared) if resume else None
    if earlier is not None and earlier.is_over(experiment.train.epochs):
        say(f"{earlier.describe()}: nothing is left to train")
        place.settle(earlier.directory)
        return Trained(earlier.directory, Outcome(earlier.status, earlier.reason or {}), place)
    for note in prepared.notes:
        say(f"note: {note}")
    if earlier is not None:
        earlier.directory.check_free("leave out --resume")
        check_storage(earlier.directory.path)
        say(f"going on: {earlier.describe()}")
    else:
        _say_what_could_go_on(place.local, name, prepared, say)
    with _workers(prepared, local, verbose, say) as (allocation, cluster):
        directory = earlier.directory if earlier else SweepDirectory.create(place.local, name)
        keys = [prepared.key] if earlier else []
        with directory.locked("leave out --resume"), place.kept(directory, keys, is_new=earlier is None):
            if earlier is not None:
                directory.check_unchanged(earlier.size)
            if cluster is not None:
                check_shared(directory, cluster)
            outcome = _recorded(prepared, allocation, directory, earlier, say, on_row, local)
    return Trained(directory, outcome, place)


def _say_what_could_go_on(storage: Path, name: str, prepared: Prepared, say: Say) -> None:
    try:
        newest = next(runs(storage, name), None)
    except RaysweepError:
        return  # whatever it is, nobody asked to go on with it
    is_same = newest is not None and newest.key == prepared.key
    if newest is not None and is_same and newest.status not in ("completed", "diverged") and not newest.is_in_use():
        say(f"note: {newest.describe()}; --resume would go on with it, this starts anew")


@contextmanager
def _workers(prepared: Prepared, local: bool, verbose: bool, say: Say) -> Iterator[tuple[Allocation, Cluster | None]]:
    """What a run may use, for the time of a block: of this process (no cluster), or of the cluster that is joined."""
    if local:
        yield _allocate_local(prepared), None
        return
    # On this machine what there is can be known, and refused, before Ray is started.
    if running_cluster() is None:
        _allocate(prepared, available_here())
    with connected(poll_s=prepared.experiment.scale.poll_s, verbose=verbose) as cluster:
        allocation = _allocate(prepared, cluster.available)
        say(cluster.describe())
        yield allocation, cluster


def _allocate(prepared: Prepared, available: Available) -> Allocation:
    allocation = allocate(prepared.experiment.scale, available, share_cpus=True)
    check_scale(prepared.model, allocation)
    return allocation


def _allocate_local(prepared: Prepared) -> Allocation:
    least = prepared.experiment.scale.min_workers
    if least > 1:
        raise ClusterError(f"--local trains in this process with one worker, scale.workers is {least}; leave out --local")
    return replace(_allocate(prepared, available_here()), max_workers=1)


def _train(
    prepared: Prepared,
    directory: Path,
    allocation: Allocation,
    on_row: Callable[[Row], None],
    on_event: Callable[[Event], None],
    say: Say,
    local: bool,
) -> Outcome:
    if local:
        device = torch.device("cuda", 0) if allocation.gpus_per_worker else torch.device("cpu")
        threads = allocation.cpus_per_worker
        return fit_here(prepared.experiment, prepared.dataset, directory, device, threads, on_row, on_event, say)
    from raysweep.train.elastic import fit

    return fit(prepared.experiment, directory, allocation, on_row, on_event, say)


def _recorded(
    prepared: Prepared,
    allocation: Allocation,
    directory: SweepDirectory,
    earlier: Earlier | None,
    say: Say,
    on_row: Callable[[Row], None],
    local: bool,
) -> Outcome:
    directory.write_manifest(manifest())
    trial, epochs = directory.trial(prepared.key), prepared.experiment.train.epochs
    trial.mkdir(parents=True, exist_ok=True)
    remove_leftovers(trial)
    told = earlier.last_epoch if earlier else 0
    say(f"{allocation.describe()}; global batch {prepared.experiment.train.batch_size}; {directory.path.name}/")
    journal = JournalWriter(directory.journal)
    try:
        journal.event("start", experiment=prepared.experiment.model_dump(mode="json", exclude_unset=True), data=prepared.facts)
        if earlier is None or earlier.experiment.train.epochs != epochs:
            parameters = prepared.model.parameters
            journal.event("trial", trial=0, key=prepared.key, overrides={}, epochs=epochs, parameters=parameters)
        journal.event("run", trial=0)

        def record(row: Row) -> None:
            nonlocal told
            if row["epoch"] > told:  # else it was told before, and trained again or told from the checkpoint
                told = row["epoch"]
                journal.row(0, row)
                on_row(row)

        def happened(event: Event) -> None:
            fields = dict(event)
            journal.event(fields.pop("event"), trial=0, **fields)

        try:
            outcome = _train(prepared, trial, allocation, record, happened, say, local)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", {"text": "Ctrl-C"})
        except Exception as error:
            failure = disk_error(error, trial)
            if failure is not None:
                with suppress(StoreError):
                    journal.event("end", trial=0, status="interrupted", reason={"text": str(failure)})
                    journal.event("finish", status="interrupted")
                raise DiskError(
                    f"{failure}. The run has ended, what was written before is kept, and the same command with --resume goes on"
                ) from None
            if not isinstance(error, RaysweepError):
                raise
            text = error.traceback_text if isinstance(error, TrialError) else ""
            journal.event("end", trial=0, status="failed", reason={"text": str(error), "traceback": text})
            journal.event("finish", status="failed")
            raise
        journal.event("end", trial=0, status=outcome.status, reason=outcome.reason)
        if (trial / "best.pt").exists():
            try:
                write_examples(trial, prepared)
            except OSError as error:
                say(f"no example images: {error}")
        journal.event("finish", status="interrupted" if outcome.status == "interrupted" else "completed")
    finally:
        journal.close()
    return outcome

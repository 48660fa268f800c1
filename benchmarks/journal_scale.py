"""A journal of many trials and rows, without Ray or training: written as a sweep writes it, then read for each of its uses.

Each use runs in a process of its own, so that its peak memory is its own. `bytes_per_row` is the journal's size / its rows,
with every trial's plan, start, decision and end; `load_s` makes the frames, `resume_s` reads what a second start needs,
`report_s` is a whole report from the journal, `recorder_us_per_row` is what a row costs the driver of a sweep.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import arguments, finish

from raysweep.config import Sweep
from raysweep.experiment import Experiment
from raysweep.report.build import build_report
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.store.results import load
from raysweep.train.prepare import ModelFacts, prepare
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import read_past


def write(directory: Path, trials: int, rows: int) -> None:
    """A sweep's journal through its recorder: `rows` epochs a trial, 16 trials at a time, every fourth stopped half way."""
    experiment = {"data": {"source": "digits", "count": 50}, "train": {"epochs": rows}}
    space = {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "optim.weight_decay": {"uniform": [0.0, 0.1]}}
    sweep = Sweep.from_dict(
        {
            "experiment": experiment,
            "space": space,
            "search": {"algorithm": "random", "num_samples": trials},
            "scheduler": {"name": "asha"},
        }
    )
    rng = np.random.default_rng(0)
    draws = [{key: float(domain.sample(rng)) for key, domain in sweep.space.items()} for _ in range(trials)]
    planned = [PlannedTrial(n, f"{n:012x}", overrides, ModelFacts(123456, False)) for n, overrides in enumerate(draws)]
    plan = Plan(sweep, prepare(Experiment.from_dict(experiment)), planned, trials)
    journal = JournalWriter(directory / "journal.jsonl")
    content = sweep.model_dump(mode="json", exclude_unset=True)
    journal.event("start", sweep=content, experiment=experiment, data=plan.prepared.facts, planned=trials, at_once=16)
    recorder = SweepRecorder(plan, journal)
    for first in range(0, trials, 16):
        together = planned[first : first + 16]
        for trial in together:
            recorder.assigned(trial.key, trial)
            recorder.started(trial.key)
        noise = rng.random((rows, len(together), 8))
        for epoch in range(1, rows + 1):
            for place, trial in enumerate(together):
                stopped = trial.number % 4 == 0 and rows > 1
                if stopped and epoch > rows // 2:
                    continue
                loss, speed, *rest = noise[epoch - 1, place].tolist()
                row = {
                    "epoch": epoch, "step": 125 * epoch, "train_loss": loss / epoch, "val_loss": loss / epoch * 1.1,
                    "psnr": 20 * speed, "lr": trial.overrides["optim.lr"], "grad_norm": rest[0], "world_size": 1,
                    "samples_per_second": 1000 * speed, "data_wait": rest[1] / 100, "seconds": 10 * rest[2],
                    "peak_memory_bytes": int(8e8 * (1 + rest[3])), "attempt": 1, "pause_s": 0.0, "redone_steps": 0,
                }  # fmt: skip
                recorder.row(trial.key, row)
                if stopped and epoch == rows // 2:
                    reason = {
                        "rule": "asha",
                        "epoch": epoch,
                        "metric": "val_loss",
                        "value": loss,
                        "rung": epoch,
                        "cutoff": loss / 2,
                    }
                    recorder.decision(trial.key, {"action": "stop", **reason})
                    recorder.ended(trial.key, "stopped", reason)
        for trial in together:
            recorder.ended(trial.key, "completed", {})
    journal.event("finish", status="completed")
    journal.close()


def read(directory: Path) -> None:
    load(directory)


def resume(directory: Path) -> None:
    read_past(SweepDirectory(directory))
    JournalWriter(directory / "journal.jsonl").close()


def report(directory: Path) -> None:
    build_report(directory)


def _child(connection: object, work: Callable[..., None], *values: object) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    work(*values)
    seconds = time.perf_counter() - began
    connection.send((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))  # type: ignore[attr-defined]


def measured(work: Callable[..., None], *values: object) -> tuple[float, float]:
    """Seconds, and MB of memory beyond what the imports take, of `work` in a new process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, work, *values))
    process.start()
    sender.close()
    try:
        seconds, megabytes = receiver.recv()
    finally:
        process.join()
    return seconds, megabytes


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100, help="epochs of a trial that is not stopped")
    options = parser.parse_args()
    numbers: dict[str, float] = {"trials": float(options.trials)}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        seconds, megabytes = measured(write, directory, options.trials, options.rows)
        journal = directory / "journal.jsonl"
        num_rows = journal.read_bytes().count(b'\n{"row"')
        size = journal.stat().st_size
        numbers |= {"rows": float(num_rows), "journal_mb": size / 1e6, "bytes_per_row": size / num_rows}
        numbers |= {"write_s": seconds, "write_mb": megabytes, "recorder_us_per_row": seconds / num_rows * 1e6}
        for name, work in (("load", read), ("resume", resume), ("report", report)):
            numbers[f"{name}_s"], numbers[f"{name}_mb"] = measured(work, directory)
    finish("a journal at scale", numbers, options.json)


if __name__ == "__main__":
    main()

"""What the engine itself costs: trials that only wait, on 16 logical CPUs, raysweep beside bare Ray Tune.

raysweep runs whole sweeps (plan, searcher, scheduler, recorder, journal, the trial's own code around a training that waits);
bare Tune runs a function that waits and reports once, with actors used again and its own loggers off. What counts is what further
trials take when 16 actors have been started, which takes half a minute, and more or less of it from run to run:
`overhead_ratio`: (T(many) - T(few)) / ((many - few) * seconds / 16), where T(n) is when n trials of one sweep had ended; 1 where
the engine costs nothing.
`bare_tune_ratio`: the same for bare Tune.
`bytes_per_row`: size of the last journal / its rows, with each trial's plan, start and end; `bytes_of_a_row`: a row alone.
`driver_mb_early`, `driver_mb_end`: memory of the driver's process when a tenth of the last sweep's trials had ended, and at its
end; `driver_kb_per_trial` is the difference by trial.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from common import arguments, finish
from ray import tune

from raysweep.cluster.join import connected, environment
from raysweep.config import Experiment, Sweep
from raysweep.train.progress import Outcome
from raysweep.tune.engine import Watcher, run_sweep
from raysweep.tune.recorder import SweepRecorder, TrialState
from raysweep.tune.trial import run_trial

SLOTS = 16


class Waiting:
    """run_trial with a training that waits for `seconds` in all, and tells rows of a real epoch's size."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, config: Mapping[str, Any], **arguments: Any) -> None:
        with mock.patch("raysweep.tune.trial.fit_here", self._fit):
            run_trial(config, **arguments)

    def _fit(self, experiment: Experiment, *arguments: Any) -> Outcome:
        on_row, epochs = arguments[4], experiment.train.epochs
        loss = 0.01 + (experiment.optim.lr * 1e4) % 1 / 100
        for epoch in range(1, epochs + 1):
            time.sleep(self.seconds / epochs)
            on_row(
                {
                    "epoch": epoch, "step": 125 * epoch, "train_loss": loss * 1.0123456789 / epoch, "val_loss": loss / epoch,
                    "psnr": 20.123456, "lr": experiment.optim.lr, "grad_norm": 0.123456, "world_size": 1,
                    "samples_per_second": 1234.5, "data_wait": 0.012, "seconds": self.seconds / epochs,
                    "peak_memory_bytes": 812300000, "attempt": 1, "pause_s": 0.0, "redone_steps": 0,
                }
            )  # fmt: skip
        return Outcome("completed", {})


def _resident() -> int:
    """Memory of this process now, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Memory(Watcher):
    """When trials ended, and the driver's memory when a tenth of them had, and at the end, bytes."""

    early = end_bytes = 0

    def begin(self, recorder: SweepRecorder) -> None:
        self._tenth = recorder.plan.num_planned // 10
        self.ended: list[float] = []

    def changed(self, state: TrialState) -> None:
        if state.has_ended:
            self.ended.append(time.perf_counter())
            if len(self.ended) == self._tenth:
                self.early = _resident()

    def end(self) -> None:
        self.end_bytes = _resident()


class Ends(tune.Callback):  # type: ignore[misc]
    """When bare Tune's trials ended."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.append(time.perf_counter())


def margin(ended: list[float], few: int) -> float:
    """Seconds from the end of the trial number `few`, from 1, to that of the last one."""
    return ended[-1] - ended[few - 1]


def time_ours(trials: int, rows: int, seconds: float, storage: Path) -> tuple[float, Path, Memory]:
    """Seconds of a whole sweep, its directory, and what was seen of it."""
    sweep = Sweep.from_dict(
        {
            "name": f"waiting-{trials}",
            "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": rows}},
            "space": {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "optim.weight_decay": {"uniform": [0.0, 0.1]}},
            "search": {"algorithm": "random", "num_samples": trials},
        }
    )
    memory = Memory()
    with mock.patch("raysweep.tune.tuning.run_trial", Waiting(seconds)):
        began = time.perf_counter()
        done = run_sweep(sweep, storage=storage, watcher=memory)
        took = time.perf_counter() - began
    if set(done.trial_statuses) != {"completed"} or len(done.trial_statuses) != trials:
        raise RuntimeError(f"not all of {trials} trials completed: {sorted(set(done.trial_statuses))}")
    return took, done.directory.path, memory


def time_bare(trials: int, seconds: float, storage: Path) -> tuple[float, list[float]]:
    """Seconds of the same number of trials as a plain Tune function, and when each ended."""

    def trial(config: dict[str, Any]) -> None:
        time.sleep(seconds)
        tune.report({"val_loss": config["lr"]})

    ends = Ends()
    began = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(trial, {"CPU": 1}),
        param_space={"lr": tune.loguniform(1e-5, 1e-1)},
        tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(storage), verbose=0, callbacks=[ends]),
    ).fit()
    took = time.perf_counter() - began
    if results.num_errors or len(results) != trials:
        raise RuntimeError(f"{results.num_errors} of {trials} trials failed")
    return took, ends.ended


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--few", type=int, default=160)
    parser.add_argument("--many", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a trial waits")
    parser.add_argument("--rows", type=int, default=1, help="of a trial of raysweep")
    parser.add_argument("--only", choices=["ours", "bare"], help="leave the other one out")
    parser.add_argument("--once", action="store_true", help="only `many` trials of raysweep: memory, journal, seconds")
    options = parser.parse_args()
    few, many, seconds = options.few, options.many, options.seconds
    ideal = (many - few) * seconds / SLOTS
    numbers: dict[str, float] = {"trials": float(many), "trial_s": seconds}
    # A cluster of the bench's own, so that the machine counts as 16 CPUs.
    ray.init(address="local", num_cpus=SLOTS, log_to_driver=False)
    with tempfile.TemporaryDirectory() as directory:
        storage = Path(directory)
        if options.once or options.only != "bare":
            with connected():
                took, where, memory = time_ours(many, options.rows, seconds, storage)
            lines = (where / "journal.jsonl").read_bytes().splitlines(keepends=True)
            sizes = [len(line) for line in lines if line.startswith(b'{"row"')]
            if not options.once:
                numbers["overhead_ratio"] = margin(memory.ended, few) / ideal
            numbers |= {
                "many_s": took,
                "bytes_per_row": sum(map(len, lines)) / len(sizes),
                "bytes_of_a_row": sum(sizes) / len(sizes),
                "driver_mb_early": memory.early / 2**20,
                "driver_mb_end": memory.end_bytes / 2**20,
                "driver_kb_per_trial": (memory.end_bytes - memory.early) / 2**10 / (0.9 * many),
            }
        if not options.once and options.only != "ours":
            with environment(TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1"):
                took, ended = time_bare(many, seconds, storage)
            numbers |= {"bare_tune_ratio": margin(ended, few) / ideal, "bare_many_s": took}
    ray.shutdown()
    finish("trials that only wait", numbers, options.json)


if __name__ == "__main__":
    main()

"""What checkpoints cost: the reference network on images of 256x256, in one process.

Checkpoints are taken every few seconds, to measure several, and their cost is spread over the default interval.
`checkpoint_share` is the share of the time that training loses to them: all that steps take longer while one is taken or
written than the median of those beside none. `checkpoint_share_at_most` counts the writer's whole CPU time as lost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, finish

from raysweep.data.dataset import Dataset
from raysweep.data.samples import Samples
from raysweep.experiment import Experiment
from raysweep.settings import TrainConfig
from raysweep.train import checkpoint
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime
from raysweep.train.saver import Saver
from raysweep.train.step import GradientStep


@dataclass
class Marks:
    """Times of a run, in seconds of time.perf_counter: when steps began, and what each checkpoint took."""

    steps: list[float] = field(default_factory=list)
    copies: list[tuple[float, float]] = field(default_factory=list)
    writes: list[tuple[float, float]] = field(default_factory=list)
    writer_cpu_s: list[float] = field(default_factory=list)


def images(count: int, size: int) -> Dataset:
    """Coarse random images, uint8 [count, size, size, 1]; the last one validates."""
    coarse = np.random.default_rng(0).integers(0, 256, (count, size // 32, size // 32, 1), dtype=np.uint8)
    x = coarse.repeat(32, axis=1).repeat(32, axis=2)
    return Dataset(Samples(x, x), np.arange(count - 1), np.arange(count - 1, count), "benchmark")


def observed(experiment: Experiment, dataset: Dataset) -> Marks:
    """Train in a temporary directory, with a watch on steps, copies and writes."""
    marks = Marks()
    step, snapshot, save = GradientStep.backward, Saver._snapshot, checkpoint.save_numbered

    def timed_step(*given: Any) -> torch.Tensor:
        marks.steps.append(time.perf_counter())
        return step(*given)

    def timed_snapshot(*given: Any) -> dict[str, Any]:
        began = time.perf_counter()
        state = snapshot(*given)
        marks.copies.append((began, time.perf_counter()))
        return state

    def timed_save(*given: Any) -> Path:
        began, cpu = time.perf_counter(), time.thread_time()
        path = save(*given)
        marks.writes.append((began, time.perf_counter()))
        marks.writer_cpu_s.append(time.thread_time() - cpu)
        return path

    try:
        GradientStep.backward = timed_step  # type: ignore[method-assign, assignment]
        Saver._snapshot = timed_snapshot  # type: ignore[method-assign, assignment]
        checkpoint.save_numbered = timed_save  # type: ignore[assignment]
        with tempfile.TemporaryDirectory() as directory:
            train(experiment, dataset, LocalRuntime(Path(directory)))
    finally:
        GradientStep.backward = step  # type: ignore[method-assign]
        Saver._snapshot = snapshot  # type: ignore[method-assign]
        checkpoint.save_numbered = save
    return marks


def lost_s(marks: Marks) -> tuple[float, float]:
    """Seconds that each checkpoint makes the steps beside it longer, on average, and the median step beside none."""
    busy = marks.copies[1:-1] + marks.writes[1:-1]  # the first copy fills fresh memory, the last is the run's end
    until = marks.writes[-2][1]
    steps = [(a, b) for a, b in zip(marks.steps[1:], marks.steps[2:], strict=False) if a < until]
    beside = [any(a < end and begin < b for begin, end in busy) for a, b in steps]
    first = [any(a < end and begin < b for begin, end in (marks.copies[0], marks.writes[0])) for a, b in steps]
    alone = [b - a for (a, b), near, warm in zip(steps, beside, first, strict=True) if not near and not warm]
    if not alone:
        raise SystemExit("no step without a checkpoint beside it: steps are too slow here; raise --every-s and --seconds")
    quiet = statistics.median(alone)
    longer = sum(b - a - quiet for (a, b), near in zip(steps, beside, strict=True) if near)
    return longer / len(marks.writes[1:-1]), quiet


def checkpoint_share(threads: int, seconds: float, every_s: float, batch_size: int) -> dict[str, float]:
    """Flat numbers of one run.

    Args:
        threads: of torch, beside the writer's own.
        seconds: about how long to train.
        every_s: seconds between checkpoints; the cost of one does not depend on it.
        batch_size: steps should be short beside `every_s`, long beside nothing.
    """
    torch.set_num_threads(threads)
    settings = {"batch_size": batch_size, "checkpoint_every_s": every_s, "epochs": 1}
    experiment = Experiment.from_dict({"model": {"preset": "reference"}, "data": {"source": "digits"}, "train": settings})
    began = time.perf_counter()
    warm = observed(experiment.with_overrides({"train.checkpoint_every_s": None}), images(4 * batch_size + 1, 256))
    step_s = statistics.median(b - a for a, b in zip(warm.steps, warm.steps[1:], strict=False))
    num_steps = max(8, int((seconds - (time.perf_counter() - began)) / step_s))
    marks = observed(experiment, images(num_steps * batch_size + 1, 256))
    lost, quiet = lost_s(marks)
    default_s = TrainConfig().checkpoint_every_s
    assert default_s is not None
    copy = statistics.median(end - begin for begin, end in marks.copies[1:])
    cpu = statistics.median(marks.writer_cpu_s)
    return {
        "checkpoint_share": lost / default_s,
        "checkpoint_share_at_most": (copy + cpu) / default_s,
        "copy_s": copy,
        "first_copy_s": marks.copies[0][1] - marks.copies[0][0],
        "writer_cpu_s": cpu,
        "write_s": statistics.median(end - begin for begin, end in marks.writes),
        "step_s": quiet,
        "num_checkpoints": len(marks.writes),
        "threads": threads,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every-s", type=float, default=5.0)
    parser.add_argument("--batch-size", type=int, default=1)
    options = parser.parse_args()
    numbers = checkpoint_share(options.threads, options.seconds, options.every_s, options.batch_size)
    finish("checkpoints: what they cost, reference network", numbers, options.json)


if __name__ == "__main__":
    main()

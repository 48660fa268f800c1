"""What the median stopping rule costs the driver of a sweep, per row: raysweep's own, and Ray Tune's, which decides the same.

No trial is stopped, which is the most work. raysweep's rule is fed the whole sweep. Ray Tune's cost grows with the trials
that have come to the row's epoch, so it is timed on the rows of one more trial, and `ray_sweep_s` = rows x half of that. raysweep
would ask it twice: what it compares (for the reason that is recorded), and what it decides.
"""

from __future__ import annotations

import math
import resource
import time

from common import arguments, finish
from ray.tune.schedulers import MedianStoppingRule

from raysweep.tune.median import MedianRule


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _value(trial: int, epoch: int) -> float:
    """Better from trial to trial: none is worse than the median."""
    return 1.0 + 1.0 / epoch - trial * 1e-6


def ours(trials: int, rows: int) -> float:
    """Seconds of a whole sweep's rows, 16 trials at a time."""
    rule = MedianRule("val_loss", "min", 1, 3)
    began = time.perf_counter()
    for first in range(0, trials, 16):
        for epoch in range(1, rows + 1):
            for number in range(first, min(first + 16, trials)):
                rule.ask(str(number), epoch, _value(number, epoch))
                assert rule.on_trial_result(None, None, {}) == "CONTINUE"
    return time.perf_counter() - began


def rays(trials: int, rows: int, timed: int = 20) -> float:
    """Seconds of one row, the mean of `timed` at even distances, after all trials have come to their last epoch."""
    options = {"time_attr": "epoch", "metric": "val_loss", "mode": "min", "grace_period": 1}
    rule = MedianStoppingRule(**options, min_samples_required=3, min_time_slice=math.inf)
    for number in range(trials):
        told = [{"epoch": epoch, "val_loss": _value(number, epoch)} for epoch in range(1, rows + 1)]
        rule._results[number] = told
    began, trial = time.perf_counter(), trials
    epochs = sorted({max(1, rows * place // timed) for place in range(1, timed + 1)})
    for epoch in epochs:
        assert rule.on_trial_result(None, trial, {"epoch": epoch, "val_loss": _value(trials, epoch)}) == "CONTINUE"
    return (time.perf_counter() - began) / len(epochs)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=100, help="epochs of a trial")
    options = parser.parse_args()
    total = options.trials * options.rows
    before = _megabytes()
    seconds = ours(options.trials, options.rows)
    between = _megabytes()
    row = rays(options.trials, options.rows)
    numbers = {"trials": float(options.trials), "rows": float(total)}
    numbers |= {"our_sweep_s": seconds, "our_us_per_row": seconds / total * 1e6, "our_mb": between - before}
    numbers |= {"ray_sweep_s": total * row / 2, "ray_us_per_row": row / 2 * 1e6, "ray_mb": _megabytes() - between}
    finish("the median stopping rule", numbers, options.json)


if __name__ == "__main__":
    main()

"""Time to best: elastic trials that grow while others end, against trials with a fixed number of workers; the same ASHA.

Simulated, in seconds and without Ray: events in time, with raysweep's own scheduler, shares (tune/shares.py) and Resizer.
A trial's loss after epoch e is final + (1 - final) * e^-rate plus noise (the power law of Domhan et al., 2015), final uniform
in 0.05 to 0.6, rate in 0.3 to 1.2, noise of standard deviation 0.005. An epoch takes EPOCH_S with one worker; w workers are
w * EFFICIENCY ** log2(w) times as fast (2 workers / 1 worker on 2 CPUs measured 1.59 to 2.07, benchmarks/ddp.py: 0.8 is the
low end). A resize costs PAUSE_S (benchmarks/elastic.py), the start of an elastic trial START_S, that of a one-worker trial in
its warm actor FIXED_START_S.

`..._ratio`: fixed / growing, the median over the seeds, `_q1` and `_q3` its quartiles. Time to best: until the sweep has
reached a loss that both reach. `sim_`: as many trials as workers, each fixed at one; `sim_queue_`: four trials a worker;
`sim_best_fixed_`: as `sim_`, against whichever of 1, 2, 4, 8 fixed workers a trial has the best median (nobody knows it before).
--real: one sweep each on this machine's CPUs, with steps that sleep (sleeping.py): perfect scaling, real overheads.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish

from raysweep.config import Sweep
from raysweep.train.sizing import Resizer

EPOCHS, STEPS, EPOCH_S = 27, 100, 60.0
EFFICIENCY, PAUSE_S, START_S, FIXED_START_S, CHECK_S, MOST = 0.8, 8.6, 8.2, 0.5, 10.0, 8
REAL_EPOCHS = 10


@dataclass(frozen=True)
class World:
    """A cluster and a sweep; `fixed`: workers of each trial, 0: elastic ones from 1 to MOST."""

    trials: int
    workers: int
    seed: int
    fixed: int = 0
    efficiency: float = EFFICIENCY
    epoch_s: float = EPOCH_S

    def seconds_per_step(self, workers: int) -> float:
        return self.epoch_s / STEPS / (workers * math.pow(self.efficiency, math.log2(workers)))

    def losses(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[trials, EPOCHS]"""
        rng = np.random.default_rng(self.seed)
        final, rate = rng.uniform(0.05, 0.6, (self.trials, 1)), rng.uniform(0.3, 1.2, (self.trials, 1))
        clean = final + (1 - final) * np.arange(1, EPOCHS + 1.0) ** -rate
        return clean + rng.normal(0, 0.005, clean.shape)


@dataclass
class Trial:
    """One that runs: it is in `epoch`, and `step` is where it was at time `at`; it stands still until then."""

    trial_id: str
    workers: int
    at: float
    epoch: int = 1
    step: float = 0.0
    resizer: Resizer | None = None
    version: int = 0
    status: str = field(default="RUNNING", init=False)


class _Unheard:
    """A recorder that is told and forgets."""

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None: ...

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None: ...

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None: ...

    def disk_failed(self, text: str) -> None: ...


class Simulation:
    """One sweep in simulated time; `told` has (time, loss) of each epoch's end."""

    def __init__(self, world: World) -> None:
        from raysweep.tune.schedulers import RecordingScheduler

        self.world, self._losses = world, world.losses()
        sweep = {
            "experiment": {"train": {"epochs": EPOCHS}}, "space": {"optim.lr": {"grid": [0.1]}},
            "scheduler": {"name": "asha", "reduction_factor": 3},
        }  # fmt: skip
        self._scheduler = RecordingScheduler(Sweep.from_dict(sweep), _Unheard())
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = itertools.count()
        self._running: dict[int, Trial] = {}
        self._waiting = list(range(world.trials))[::-1]
        self._at_once = world.workers // (world.fixed or 1)
        self._free = world.workers
        self.told: list[tuple[float, float]] = []

    def _later(self, at: float, kind: str, number: int) -> None:
        heapq.heappush(self._events, (at, next(self._order), kind, number, self._running[number].version))

    def run(self) -> Simulation:
        self._fill(0.0)
        while self._events:
            now, _, kind, number, version = heapq.heappop(self._events)
            trial = self._running.get(number)
            if trial is None or (kind == "epoch" and version != trial.version):
                continue
            (self._epoch if kind == "epoch" else self._check)(now, number, trial)
        return self

    def _share(self, number: int) -> int:
        from raysweep.tune.shares import fair_shares

        keys = [str(n) for n in self._running]
        shares = fair_shares(self.world.workers, self._at_once, len(keys) + len(self._waiting), keys, 1, MOST)
        return shares.each.get(str(number), shares.others)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._running) < self._at_once:
            number = self._waiting.pop()
            began = now + (FIXED_START_S if self.world.fixed == 1 else START_S)
            self._running[number] = trial = Trial(str(number), self.world.fixed, began)
            trial.workers = trial.workers or min(self._share(number), self._free)
            self._free -= trial.workers
            self._scheduler.on_trial_add(None, trial)
            self._goes_on(number, trial)
            if not self.world.fixed:
                trial.resizer = Resizer(trial.workers, 1, MOST, START_S)
                self._later(began + CHECK_S, "check", number)

    def _goes_on(self, number: int, trial: Trial) -> None:
        trial.version += 1
        left = max(0.0, trial.epoch * STEPS - trial.step)
        self._later(trial.at + left * self.world.seconds_per_step(trial.workers), "epoch", number)

    def _epoch(self, now: float, number: int, trial: Trial) -> None:
        epoch = trial.epoch
        trial.at, trial.step, trial.epoch = now, epoch * STEPS, epoch + 1
        loss = float(self._losses[number, epoch - 1])
        self.told.append((now, loss))
        row = {"epoch": epoch, "val_loss": loss}
        action = self._scheduler.on_trial_result(None, trial, {"row": json.dumps(row), **row})
        if action == "CONTINUE" and epoch < EPOCHS:
            self._goes_on(number, trial)
            return
        if epoch == EPOCHS:
            self._scheduler.on_trial_complete(None, trial, row)
        del self._running[number]
        self._free += trial.workers
        self._fill(now)

    def _check(self, now: float, number: int, trial: Trial) -> None:
        assert trial.resizer is not None
        if now > trial.at:
            trial.step += (now - trial.at) / self.world.seconds_per_step(trial.workers)
            trial.at = now
        trial.resizer.high = self._share(number)
        left = math.ceil(EPOCHS * STEPS - trial.step)
        new = trial.resizer.check(trial.workers + self._free, left, self.world.seconds_per_step(trial.workers))
        if new is not None:
            self._free -= new - trial.workers
            trial.workers, trial.at = new, now + PAUSE_S
            trial.resizer = Resizer(new, 1, MOST, PAUSE_S)
            self._goes_on(number, trial)
        self._later(max(now, trial.at) + CHECK_S, "check", number)

    @property
    def best(self) -> float:
        return min(loss for _, loss in self.told)

    def time_to(self, loss: float) -> float:
        """When the sweep had this loss, seconds."""
        return min(at for at, value in self.told if value <= loss)

    @property
    def makespan(self) -> float:
        return max(at for at, _ in self.told)


def ratios(fixed: Simulation, growing: Simulation) -> tuple[float, float]:
    """Of the time to best, and of the makespan: fixed / growing."""
    loss = max(fixed.best, growing.best)
    return fixed.time_to(loss) / growing.time_to(loss), fixed.makespan / growing.makespan


def quartiles(name: str, values: list[float]) -> dict[str, float]:
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return {name: float(median), f"{name}_q1": float(q1), f"{name}_q3": float(q3)}


def simulated(seeds: int, world: World) -> Iterator[dict[str, float]]:
    """The simulated keys of a world with as many trials as workers, and of one whose trials wait."""
    growing = [Simulation(replace(world, seed=seed)).run() for seed in range(seeds)]
    by_width = {}
    for width in (1, 2, 4, 8):
        fixed = [Simulation(replace(world, seed=seed, fixed=width)).run() for seed in range(seeds)]
        by_width[width] = [ratios(f, g) for f, g in zip(fixed, growing, strict=True)]
    best = min(by_width, key=lambda width: float(np.median([to_best for to_best, _ in by_width[width]])))
    queue = replace(world, trials=4 * world.workers)
    waits = [
        ratios(Simulation(replace(queue, seed=s, fixed=1)).run(), Simulation(replace(queue, seed=s)).run()) for s in range(seeds)
    ]
    for prefix, found in (("sim", by_width[1]), ("sim_best_fixed", by_width[best]), ("sim_queue", waits)):
        yield quartiles(f"{prefix}_time_to_best_ratio", [to_best for to_best, _ in found])
        yield quartiles(f"{prefix}_makespan_ratio", [makespan for _, makespan in found])
    yield {"sim_best_fixed_workers": float(best)}


def real() -> dict[str, float]:
    """One sweep with trials that grow and one whose trials have one worker, on a Ray of this machine."""
    import raysweep
    from raysweep.cluster.join import connected, environment
    from raysweep.store.journal import read_events

    sweep = {
        "experiment": {
            "data": {"source": "digits", "count": 200},
            "model": {"factory": "sleeping:SleepingNet", "params": {"kind": "good"}},
            "train": {"epochs": REAL_EPOCHS, "batch_size": 16},
        },
        "space": {"model.params.kind": {"grid": ["good", "bad", "worse"]}},
        "scheduler": {"name": "asha", "reduction_factor": 3},
    }  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as directory, environment(PYTHONPATH=path), connected():
        for name, scale in (("fixed", {"workers": 1}), ("growing", {"workers": [1, 2], "resize_check_s": 2.0})):
            content = {**sweep, "name": name, "experiment": {**sweep["experiment"], "scale": scale}}  # type: ignore[dict-item]
            result = raysweep.sweep(content, storage=directory)
            if list(result.trials["status"]) != ["completed", "stopped", "stopped"]:
                raise RuntimeError(result.trials.to_string())
            rows[name] = list(read_events(result.directory / "journal.jsonl"))
    return real_ratios(rows["fixed"], rows["growing"])


def real_ratios(fixed: list[dict[str, Any]], growing: list[dict[str, Any]]) -> dict[str, float]:
    """From the two journals' events."""

    def told(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
        return [
            (e["time"] - events[0]["time"], e["val_loss"]) for e in events if e["event"] == "row" and e["val_loss"] is not None
        ]

    loss = max(min(value for _, value in told(events)) for events in (fixed, growing)) * (1 + 1e-6)  # ddp: equal up to rounding
    to_best = [min(at for at, value in told(events) if value <= loss) for events in (fixed, growing)]
    pauses = [event["pause_s"] for event in growing if event["event"] == "resize"]
    return {
        "real_fixed_s": to_best[0], "real_growing_s": to_best[1], "real_time_to_best_ratio": to_best[0] / to_best[1],
        "real_pause_s": sum(pauses),
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=32, help="as many as workers (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--efficiency", type=float, default=EFFICIENCY, help="what a doubling keeps (default: %(default)s)")
    parser.add_argument("--epoch-s", type=float, default=EPOCH_S, help="of one worker (default: %(default)s)")
    parser.add_argument("--real", action="store_true", help="also one real sweep each on 2 CPUs, about 4 minutes")
    options = parser.parse_args()
    world = World(options.trials, options.trials, 0, efficiency=options.efficiency, epoch_s=options.epoch_s)
    numbers = {"trials": float(world.trials), "efficiency": world.efficiency, "epoch_s": world.epoch_s, "pause_s": PAUSE_S}
    for found in simulated(options.seeds, world):
        numbers |= found
    if options.real:
        numbers |= real()
    finish("time to best: fixed workers / growing survivors", numbers, options.json)


if __name__ == "__main__":
    main()

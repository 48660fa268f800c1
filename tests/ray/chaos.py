"""Elastic runs on a real Ray cluster of this machine, while workers are killed and machines come and go, by a seeded schedule.

`python tests/ray/chaos.py --runs 30 --seed 0 --faults 3` prints a line a run and exits with 1 if any broke a promise: each
sample once per epoch, each epoch's row once, the losses (ddp: to 1e-5) or every bit (bitwise) of an uninterrupted run with
one worker, an end in bounded time, and all CPUs given back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_cluster import MAX_NODES, ChaosCluster, Schedule

import raysweep
from raysweep.errors import RaysweepError
from raysweep.train import checkpoint, ledger

ROOT = Path(raysweep.__file__).parents[1]
EPOCHS = 20
LIMIT_S = 600.0
SETTLE_S = 15.0  # after the last fault, so that what it leads to happens while training is slow
TOLERANCE = {"ddp": 1e-5, "bitwise": 0.0}

MODEL = """
import pathlib, time
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(1, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(6, 1, 3, padding=1))

    def forward(self, x):
        # About 0.4 s a step of 16 samples whatever the number of workers and shards, until no more faults come: 4 minutes of
        # training, so that it is not over before them, and growing pays however long workers take to start.
        if self.training and not pathlib.Path(__file__).with_name("hurry").exists():
            workers = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            time.sleep(0.4 * len(x) * workers / 16)
        return super().forward(x)
"""

EXPERIMENT = """
data: {source: digits, count: 600, noise: 0.1}
model: {factory: "chaosnet:Net"}
train: {epochs: EPOCHS, batch_size: 16, checkpoint_every_s: 2, ledger: true, exactness: EXACTNESS}
scale: {cpus_per_worker: 1, max_failures: 10, resize_check_s: 1, start_timeout_s: 120}
"""


@dataclass
class Result:
    """What one run did, and the promises that it broke."""

    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    redone: int = 0
    lost: int = 0
    repeated: int = 0
    difference: float = float("nan")
    broken: list[str] = field(default_factory=list)

    def describe(self) -> str:
        sizes = ">".join(map(str, self.sizes))
        return (
            f"{' '.join(self.faults)} | attempts {len(self.sizes)}, workers {sizes} | redone {self.redone} | lost {self.lost} "
            f"repeated {self.repeated} | difference {self.difference:.1e} | {self.seconds:.0f} s | "
            f"{'; '.join(self.broken) or 'ok'}"
        )


def start(directory: Path, name: str, exactness: str, *options: str, address: str | None = None) -> subprocess.Popen[bytes]:
    """`python -m raysweep.train` in a session of its own; what it prints goes to NAME.log."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_ADDRESS": address} if address else {}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    (directory / "chaosnet.py").write_text(MODEL)
    file = directory / f"{exactness}.yaml"
    file.write_text(EXPERIMENT.replace("EPOCHS", str(EPOCHS)).replace("EXACTNESS", exactness))
    arguments = ["-m", "raysweep.train", file.name, "--storage", "results", "--name", name, *options]
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def uninterrupted(directory: Path, exactness: str) -> Path:
    """The directory of a run with one worker in one process, without Ray."""
    (directory / "hurry").touch()
    process = start(directory, f"whole-{exactness}", exactness, "--local")
    try:
        assert process.wait(300) == 0, (directory / f"whole-{exactness}.log").read_text()
    finally:
        end(process)
    return directory / "results" / f"whole-{exactness}"


def run(cluster: ChaosCluster, directory: Path, name: str, exactness: str, schedule: Schedule, whole: Path) -> Result:
    """One elastic run under a schedule of faults, and its comparison with the uninterrupted one."""
    cluster.reset()
    result, began = Result(), time.monotonic()
    (directory / "hurry").unlink(missing_ok=True)
    process = start(directory, name, exactness, "--workers", f"1:{MAX_NODES}", address=cluster.address)
    waiting, next_at, first_at = list(schedule.faults), float("inf"), 0.0
    try:
        while process.poll() is None and time.monotonic() - began < LIMIT_S:
            time.sleep(0.05)
            cluster.take_away(time.time())
            now = time.monotonic()
            if not first_at and any((directory / "results" / name).glob("trials/*/ledger/*.jsonl")):
                first_at, next_at = now, now + waiting[0].after_s
            if waiting and now >= next_at:
                fault = waiting.pop(0)
                if not cluster.strike(fault):
                    result.broken.append("found no worker to kill")
                result.faults.append(f"{fault.kind}@{now - first_at:.1f}")
                next_at = time.monotonic() + (waiting[0].after_s if waiting else SETTLE_S)
            elif not waiting and now >= next_at:
                (directory / "hurry").touch()
        if process.poll() is None:
            result.broken.append(f"did not end in {LIMIT_S:.0f} s")
        elif process.returncode:
            result.broken.append(f"exit code {process.returncode}")
    finally:
        end(process)
    result.seconds = time.monotonic() - began
    if waiting:
        result.broken.append(f"ended before {len(waiting)} of its faults")
    cluster.take_away(float("inf"))
    if not cluster.cpus_return():
        result.broken.append("CPUs are still held")
    try:
        compare(directory / "results" / name, whole, exactness, result)
    except (RaysweepError, OSError, ValueError, LookupError, Warning) as error:
        result.broken.append(f"{type(error).__name__}: {error}")
    return result


def compare(directory: Path, whole: Path, exactness: str, result: Result) -> None:
    """Hold a finished run to the promises."""
    (trial,), (reference,) = (list((d / "trials").iterdir()) for d in (directory, whole))
    firsts = sorted(trial.glob("ledger/*-0.jsonl"))
    result.sizes = [json.loads(path.read_bytes().split(b"\n")[0])["world_size"] for path in firsts if path.stat().st_size]
    history = ledger.committed(trial)
    report = ledger.check(history, range(1, EPOCHS + 1))
    result.redone, result.lost, result.repeated = history.redone_steps, report.lost, report.repeated
    if report.lost or report.repeated:
        result.broken.append("samples lost or repeated")
    rows, expected = raysweep.open(directory).rows, raysweep.open(whole).rows
    if list(rows["epoch"]) != list(range(1, EPOCHS + 1)):
        result.broken.append(f"rows of epochs {list(rows['epoch'])}")
        return
    result.difference = max(abs(a / b - 1) for a, b in zip(rows["val_loss"], expected["val_loss"], strict=True))
    if result.difference > TOLERANCE[exactness]:
        result.broken.append("val_loss differs")
    for path in trial.glob("*.pt"):
        checkpoint.load(path)  # raises if it is damaged
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged one is skipped with a warning
        newest, last = checkpoint.newest_complete(trial), checkpoint.newest_complete(reference)
    if newest is None or last is None:
        result.broken.append("no complete checkpoint")
    elif exactness == "bitwise" and digest(newest.content) != digest(last.content):
        result.broken.append("weights or optimizer state differ")


def digest(content: dict[str, Any]) -> str:
    """SHA-256 of the weights and the optimizer state of a checkpoint, every bit of them."""
    hashed = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                hashed.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            hashed.update(value.contiguous().numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode())

    add({"model": content["model"], "optimizer": content["optimizer"]})
    return hashed.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the first run's schedule; the next ones count on")
    parser.add_argument("--faults", type=int, default=3)
    parser.add_argument("--exactness", choices=["ddp", "bitwise", "both"], default="both", help="both: in turn")
    options = parser.parse_args()
    modes = ["ddp", "bitwise"] if options.exactness == "both" else [options.exactness]
    directory = Path(tempfile.mkdtemp(prefix="raysweep-chaos-"))
    results = []
    wholes = {mode: uninterrupted(directory, mode) for mode in modes[: options.runs]}
    with ChaosCluster() as cluster:
        for number in range(options.runs):
            seed, mode = options.seed + number, modes[number % len(modes)]
            schedule = Schedule.random(seed, options.faults)
            result = run(cluster, directory, f"seed-{seed}", mode, schedule, wholes[mode])
            results.append(result)
            print(f"seed {seed} {mode}: {result.describe()}", flush=True)
    failed = [result for result in results if result.broken]
    print(
        f"{len(results)} runs, {sum(len(r.faults) for r in results)} faults, {sum(len(r.sizes) for r in results)} attempts: "
        f"lost {sum(r.lost for r in results)}, repeated {sum(r.repeated for r in results)}, "
        f"redone {sum(r.redone for r in results)} steps, {len(failed)} runs broke a promise"
        + (f"; see {directory}" if failed else "")
    )
    if not failed:
        shutil.rmtree(directory)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

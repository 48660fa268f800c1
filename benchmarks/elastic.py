"""A planned grow, 1 -> 2 workers, when a machine joins: raysweep at its defaults against a bare elastic TorchTrainer at Ray's.

On a cluster of this machine (a head without CPUs, machines with one CPU each) both train the same network, whose step takes
a third of a second, with a checkpoint an epoch for the bare trainer; a second machine joins in the middle of an epoch.
`pause_s`: from the last step with one worker to the first with two. `redone_steps`: steps that were done twice.
`noticed_s`: from the machine's joining to the last step with one worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import arguments, finish
from torch import Tensor, nn

STEP_S, BATCH, IMAGES, EPOCHS = 0.33, 16, 1000, 12
SETTINGS = [
    "model.factory=elastic:SlowNet", "data={source: digits, count: 1000, val_fraction: 0.2}", f"train.batch_size={BATCH}",
    f"train.epochs={EPOCHS}",
]  # fmt: skip


class SlowNet(nn.Conv2d):
    """One convolution and a pause: a step takes STEP_S whatever the machine is busy with."""

    def __init__(self) -> None:
        super().__init__(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(STEP_S)
        return super().forward(x)


def bare_worker(config: dict[str, Any]) -> None:
    """Ray's documented elastic training function; each step of rank 0 is noted for the measurement."""
    import ray.train
    import ray.train.torch
    from torch.utils.data import DataLoader, TensorDataset

    context = ray.train.get_context()
    world, rank = context.get_world_size(), context.get_world_rank()
    images = torch.rand(IMAGES * 8 // 10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(images), batch_size=BATCH // world, shuffle=True))
    model = ray.train.torch.prepare_model(SlowNet())
    optimizer, first = torch.optim.Adam(model.parameters()), 0
    found = ray.train.get_checkpoint()
    if found:
        with found.as_directory() as directory:
            state = torch.load(Path(directory) / "state.pt", weights_only=True)
        getattr(model, "module", model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, EPOCHS):
        for number, (x,) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if rank == 0:
                with Path(config["steps"]).open("a") as file:
                    file.write(json.dumps([world, epoch * len(loader) + number + 1, time.time()]) + "\n")
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0:
                state = {
                    "model": getattr(model, "module", model).state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, Path(directory) / "state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


def bare(directory: str) -> None:
    """The bare trainer, in a process of its own that joins the cluster."""
    import ray.train
    import ray.train.torch

    ray.init(log_to_driver=False)
    ray.train.torch.TorchTrainer(
        bare_worker,
        train_loop_config={"steps": f"{directory}/steps"},
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2)),
        run_config=ray.train.RunConfig(
            name="bare", storage_path=directory, failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    ).fit()


def _steps(file: Path) -> list[tuple[int, int, float]]:
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def _journal(directory: Path) -> list[dict[str, Any]]:
    files = list(directory.glob("results/*/journal.jsonl"))
    return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []


def grown(command: list[str], directory: Path, began: Callable[[], bool], grew: Callable[[], bool]) -> float:
    """Run a command on a new cluster, let a machine join once training has begun; when it joined, seconds since 1970."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "dashboard_host": "127.0.0.1"})
    try:
        cluster.add_node(num_cpus=1)
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": paths}
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            _wait(began, process, directory)
            time.sleep(12)  # well inside an epoch of 17 s
            cluster.add_node(num_cpus=1)
            joined = time.time()
            _wait(grew, process, directory)
        finally:
            process.kill()
            process.wait()
    finally:
        cluster.shutdown()
    return joined


def _wait(what: Callable[[], bool], process: subprocess.Popen[bytes], directory: Path) -> None:
    until = time.monotonic() + 240
    while not what():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError((directory / "log").read_text())
        time.sleep(0.2)


def measure_ours(directory: Path) -> dict[str, float]:
    """raysweep's grow, as its journal tells it."""
    command = [sys.executable, "-m", "raysweep.train", "--workers", "1:2", *(s for one in SETTINGS for s in ("--set", one))]

    def event() -> dict[str, Any] | None:
        return next((e for e in _journal(directory) if e.get("event") == "resize" and e["to"] == 2), None)

    began = lambda: any(directory.glob("results/*/trials/*/mail/1/pulse"))  # noqa: E731
    joined = grown(command, directory, began, lambda: event() is not None)
    found = event()
    assert found is not None
    noticed = found["time"] - joined
    return {"redone_steps": found["redone_steps"], "pause_s": found["pause_s"], "noticed_s": noticed}


def measure_bare(directory: Path) -> dict[str, float]:
    """The bare trainer's grow, from its step log."""
    log = directory / "steps"
    command = [sys.executable, __file__, "--bare", str(directory)]
    joined = grown(command, directory, lambda: bool(_steps(log)), lambda: any(world == 2 for world, _, _ in _steps(log)))
    steps = _steps(log)
    last = [s for s in steps if s[0] == 1][-1]
    first = next(s for s in steps if s[0] == 2)
    return {
        "bare_ray_redone_steps": last[1] - first[1] + 1,
        "bare_ray_pause_s": first[2] - last[2],
        "bare_ray_noticed_s": last[2] - joined,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--bare", metavar="DIRECTORY", help="(the bare trainer's own process)")
    options = parser.parse_args()
    if options.bare:
        import elastic  # by its name, so that the workers find what they are sent

        elastic.bare(options.bare)
        return
    numbers: dict[str, float] = {}
    for measure in (measure_ours, measure_bare):
        with tempfile.TemporaryDirectory() as directory:
            numbers |= measure(Path(directory))
    finish("a machine joins: growing from 1 worker to 2", numbers, options.json)


if __name__ == "__main__":
    main()

"""Two workers on one machine: raysweep's loop against plain torchrun DDP, one worker against two, bitwise against ddp.

Two processes of one torch thread each stay alive and run the variants in turn, so that all meet the same machine; what needs
one worker runs in the first while the second waits. Each figure is the median over the rounds of that round's ratio.
`bitwise_over_ddp` is step time over step time, all others are samples/s over samples/s.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import arguments, finish, plain_images, plain_model
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from raysweep.data.dataset import Dataset, open_dataset
from raysweep.experiment import Experiment
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime, ProcessGroupRuntime, Row


@dataclass(frozen=True)
class Bench:
    """What the variants share in one process."""

    experiment: Experiment
    dataset: Dataset
    images: torch.Tensor
    alone: dist.ProcessGroup | None  # of the first process only


def ours(bench: Bench, workers: int, exactness: str = "ddp") -> float:
    """Samples/s of raysweep's loop in its last epoch."""
    experiment = bench.experiment.with_overrides({"train.exactness": exactness})
    rows: list[Row] = []
    kind = LocalRuntime if workers == 1 else ProcessGroupRuntime
    with tempfile.TemporaryDirectory() as directory:
        # Of the second worker's directory nothing is read: checkpoints are rank 0's.
        train(experiment, bench.dataset, kind(Path(directory), on_row=rows.append))
    return float(rows[-1]["samples_per_second"]) if rows else 0.0


def plain(bench: Bench, workers: int) -> float:
    """Samples/s, in its last epoch, of the script that people start with torchrun."""
    group = bench.alone if workers == 1 else None
    config = bench.experiment.train
    dataset = TensorDataset(bench.images)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, workers, dist.get_rank())
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=config.batch_size // workers, sampler=sampler)
    model = DistributedDataParallel(plain_model(bench.experiment, bench.images), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), lr=bench.experiment.optim.lr)
    began, total = 0.0, 0.0
    for epoch in range(config.epochs):
        began = time.perf_counter()
        sampler.set_epoch(epoch)
        for (y,) in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(y + bench.experiment.data.noise * torch.randn_like(y)), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
    return len(bench.images) / (time.perf_counter() - began)


VARIANTS: dict[str, tuple[int, Callable[[Bench], float]]] = {
    "ours_2": (2, lambda bench: ours(bench, 2)),
    "plain_2": (2, lambda bench: plain(bench, 2)),
    "bitwise_2": (2, lambda bench: ours(bench, 2, "bitwise")),
    "ours_1": (1, lambda bench: ours(bench, 1)),
    "plain_1": (1, lambda bench: plain(bench, 1)),
    "bitwise_1": (1, lambda bench: ours(bench, 1, "bitwise")),
}
"""Workers, and what to run on them; it returns samples/s."""


def process(rank: int, tree: dict[str, Any], rounds: int, names: list[str], directory: str) -> None:
    """One of the two processes; the first leaves each round's samples/s in rounds.json."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    alone = dist.new_group([0])
    experiment = Experiment.from_dict(tree)
    bench = Bench(experiment, open_dataset(experiment.data), plain_images(experiment), alone)
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        speeds = {}
        for name in names:
            workers, variant = VARIANTS[name]
            dist.barrier()
            if rank < workers:
                speeds[name] = variant(bench)
        found.append(speeds)
    if rank == 0:
        (Path(directory) / "rounds.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="of each run; the last one counts")
    parser.add_argument("--images", type=int, default=640, help="a fifth of them for validation")
    parser.add_argument("--base-channels", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    tree = {
        "model": {"depth": options.depth, "base_channels": options.base_channels},
        "data": {"count": options.images},
        "train": {"epochs": options.epochs, "batch_size": 64},
    }
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        settings = (tree, options.rounds, options.only, directory)
        mp.start_processes(process, settings, nprocs=2, start_method="spawn")  # type: ignore[attr-defined, no-untyped-call]
        rounds: list[dict[str, float]] = json.loads((Path(directory) / "rounds.json").read_text())

    def ratio(one: str, other: str) -> float:
        return statistics.median(speeds[one] / speeds[other] for speeds in rounds)

    numbers = {f"{name}_samples_per_second": statistics.median(s[name] for s in rounds) for name in options.only}
    figures = {
        "ratio_vs_torchrun": ("ours_2", "plain_2"),
        "scaling_1_to_2": ("ours_2", "ours_1"),
        "plain_scaling_1_to_2": ("plain_2", "plain_1"),
        "bitwise_over_ddp": ("ours_2", "bitwise_2"),
        "bitwise_over_ddp_1": ("ours_1", "bitwise_1"),
    }
    numbers |= {name: ratio(*pair) for name, pair in figures.items() if set(pair) <= set(options.only)}
    finish("two workers: raysweep, plain DDP, bitwise", numbers, options.json)


if __name__ == "__main__":
    main()

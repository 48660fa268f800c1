"""A population whose driver is killed for real, again and again: every epoch once, and the same copies as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_ray_resume import events, killed_until_it_ends, runs_after_the_end

import raysweep
from raysweep.cluster.join import Cluster
from raysweep.store.objects import open_store
from raysweep.store.parts import chain, joined
from raysweep.train import checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200), pytest.mark.usefixtures("resources_return")]

PBT = """
name: cut
experiment:
  data: {source: digits, count: 200}
  model: {depth: 1, base_channels: 4}
  train: {epochs: 12, batch_size: 16, checkpoint_every_epochs: 1}
space:
  optim.lr: {loguniform: [1e-5, 1e-1]}
  model.base_channels: {choice: [2, 4]}
search: {algorithm: random, num_samples: 4, max_concurrent: AT_ONCE, seed: 1}
scheduler: {name: pbt, interval: 2}
"""


def told(path: Path) -> dict[str, Any]:
    """What a population committed: rows, copies, ends, the table, and the losses of best.pt; nothing twice."""
    rows = {(e["trial"], e["epoch"]): (e["train_loss"], e["val_loss"]) for e in events(path, "row")}
    copies = {(e["trial"], e["generation"]): (e["epoch"], e["from"], e["overrides"]) for e in events(path, "population")}
    assert len(rows) == len(events(path, "row")), "a row was told twice"
    assert len(copies) == len(events(path, "population")), "a copy was made twice"
    found = raysweep.open(path)
    best = [checkpoint.load(path / name) for name in found.trials["checkpoint"]]
    return {
        "rows": rows,
        "copies": copies,
        "ends": list(found.trials["status"]),
        "board": list(found.results.leaderboard["trial"]),
        "best": [(content["epoch"], content["val_loss"]) for content in best],
    }


def test_a_population_killed_twelve_times_is_the_same(cluster: Cluster, tmp_path: Path) -> None:
    """Two members at a time where one was; some kills fall just after a copy is in the journal."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for directory in (whole, cut):
        directory.mkdir()
    killed_until_it_ends(whole, cluster.address, 1, 0, seed=0, text=PBT)
    marks = (b"\n", b'"event":"population"')
    assert killed_until_it_ends(cut, cluster.address, 2, 12, seed=3, text=PBT, marks=marks) == 12
    expected = told(whole / "results" / "cut")
    assert len(expected["rows"]) == 4 * 12
    assert len(expected["copies"]) == 5
    assert told(cut / "results" / "cut") == expected
    assert runs_after_the_end(cut) == 0


def test_a_population_whose_machines_are_lost_goes_on_from_its_uri(cluster: Cluster, tmp_path: Path) -> None:
    """Each time nothing is left but the URI: the driver is killed when the store knows of so many copies."""
    place = tmp_path / "bucket"
    store = open_store(f"{place.as_uri()}/cut")

    def machine(name: str, *options: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "cut.yaml").write_text(PBT.replace("AT_ONCE", "2"))
        path = os.pathsep.join([str(Path(raysweep.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": path}
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "raysweep.tune", "cut.yaml", *options]
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    assert machine("whole").wait(200) == 0, (tmp_path / "whole" / "log").read_text()
    for copies in (1, 2, 4):
        lost = machine("lost", "--storage", place.as_uri())
        until = time.monotonic() + 150
        while joined(store, chain(store.list("journal"))).count(b'"event":"population"') < copies:
            assert time.monotonic() < until
            assert lost.poll() is None, (tmp_path / "lost" / "log").read_text()
            time.sleep(0.02)
        lost.send_signal(signal.SIGKILL)
        lost.wait()
        (tmp_path / "lost").rename(tmp_path / f"gone-{copies}")
        store.delete("lease.json")  # or the next machine would wait a minute for it
    assert machine("last", "--storage", place.as_uri()).wait(200) == 0, (tmp_path / "last" / "log").read_text()
    path = tmp_path / "last" / "results" / "cut"
    assert told(path) == told(tmp_path / "whole" / "results" / "cut")
    assert runs_after_the_end(tmp_path / "last") == 0
    there = set(store.list("trials"))
    here = {f"trials/{file.relative_to(path / 'trials').as_posix()}" for file in path.glob("trials/*/clone-*/*")}
    assert {name for name in there if "/clone-" in name} == here
    assert sum(name.endswith("best.pt") for name in there) == 4

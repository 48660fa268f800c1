"""A sweep whose machine is lost goes on elsewhere from its URI, with a searcher and a rule of the user's own. Real Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import raysweep
from raysweep.cluster.join import Cluster
from raysweep.store.journal import read_events
from raysweep.store.objects import open_store
from raysweep.store.parts import chain, joined

SWEEP = """
name: moved
experiment:
  data: {source: digits, count: 200}
  model: {depth: 1, base_channels: 4}
  train: {epochs: 40, batch_size: 16, checkpoint_every_epochs: 1}
space:
  optim.lr: {loguniform: [1e-4, 1e-1]}
search: {algorithm: "mine:search", num_samples: 5, max_concurrent: 1}
scheduler: {name: "mine:rule"}
"""
MINE = """
import pathlib
import time

class Search:
    def __init__(self, space):
        self.domain = space["optim.lr"]
    def suggest(self, known):
        return {"optim.lr": self.domain.at((len(known) * 0.381966 + 0.1) % 1)}

def search(space, mode, seed):
    return Search(space)

class Rule:
    def __init__(self):
        self.asked = 0
    def decide(self, key, epoch, value):
        self.asked += 1
        while self.asked == 75 and pathlib.Path("is_lost").exists():  # in the third of five trials
            time.sleep(1)
        return "far enough" if epoch == 30 else None

def rule(mode, epochs):
    return Rule()
"""


def told(journal: Path) -> dict[str, Any]:
    """What a sweep committed."""
    events = list(read_events(journal))
    rows = [(e["trial"], e["epoch"], e["val_loss"]) for e in events if e["event"] == "row"]
    decisions = [(e["trial"], e["epoch"], e["text"]) for e in events if e["event"] == "decision"]
    return {"rows": rows, "decisions": decisions, "points": [e["overrides"] for e in events if e["event"] == "trial"]}


@pytest.mark.timeout(700)
@pytest.mark.usefixtures("resources_return")
def test_a_machine_that_is_lost_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    uri = (tmp_path / "bucket").as_uri()

    def machine(name: str, *options: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "moved.yaml").write_text(SWEEP)
        (folder / "mine.py").write_text(MINE)
        path = os.pathsep.join([str(Path(raysweep.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "raysweep.tune", "moved.yaml", *options],
                cwd=folder,
                env={**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": path},
                stdout=log,
                stderr=log,
            )

    whole = machine("whole")
    assert whole.wait(250) == 0, (tmp_path / "whole" / "log").read_text()

    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "is_lost").touch()
    lost = machine("lost", "--storage", uri)
    until = time.monotonic() + 200
    store = open_store(f"{uri}/moved")
    while joined(store, chain(store.list("journal"))).count(b'"row"') < 50:
        assert time.monotonic() < until
        assert lost.poll() is None, (tmp_path / "lost" / "log").read_text()
        time.sleep(0.05)
    lost.send_signal(signal.SIGKILL)
    lost.wait()
    kept = told(tmp_path / "lost" / "results" / "moved" / "journal.jsonl")
    (tmp_path / "lost").rename(tmp_path / "gone")

    other = machine("other", "--storage", uri)
    log = tmp_path / "other" / "log"
    assert other.wait(300) == 0, log.read_text()
    assert "fetched moved/ from file://" in log.read_text()
    again = told(tmp_path / "other" / "results" / "moved" / "journal.jsonl")
    expected = told(tmp_path / "whole" / "results" / "moved" / "journal.jsonl")
    assert again == expected
    assert len(again["decisions"]) == 5
    same = sum(a == b for a, b in zip(kept["rows"], again["rows"], strict=False))
    assert same == len(kept["rows"]) >= 50
    runs = [e["trial"] for e in read_events(tmp_path / "other" / "results" / "moved" / "journal.jsonl") if e["event"] == "run"]
    assert len(runs) <= 6, "one trial was cut, no other one began twice"
    content = joined(store, chain(store.list("journal")))
    assert content == (tmp_path / "other" / "results" / "moved" / "journal.jsonl").read_bytes()
    names = store.list()
    assert "report.html" in names
    assert "lease.json" not in names
    assert sum(name.endswith("best.pt") for name in names) == 5

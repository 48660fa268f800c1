"""Schedulers with several brackets or generations, on a real cluster: decisions and copies are in the journal and the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysweep
from raysweep.config import Sweep
from raysweep.store.journal import read_events
from raysweep.train import checkpoint
from raysweep.tune.engine import run_sweep
from raysweep.tune.hyperband import bracket_of, shares

TINY: dict[str, Any] = {
    "data": {"source": "digits", "count": 200},
    "model": {"depth": 1, "base_channels": 4},
    "train": {"epochs": 4, "batch_size": 16},
}


def sweep(**changes: Any) -> Sweep:
    content: dict[str, Any] = {
        "name": "s",
        "experiment": TINY,
        "space": {"optim.lr": {"loguniform": [1e-5, 1e-1]}},
        "search": {"algorithm": "random", "num_samples": 8, "seed": 1},
    }
    return Sweep.from_dict({**content, **changes})


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(directory / "journal.jsonl") if event["event"] == name]


@pytest.mark.usefixtures("resources_return")
def test_hyperband_stops_within_brackets_and_says_which(tmp_path: Path) -> None:
    content = sweep(scheduler={"name": "hyperband", "reduction_factor": 2})
    result = raysweep.sweep(content, storage=tmp_path)
    of_each = shares(3, 2)  # rungs 1 and 2, rung 2, none
    decisions = events(result.directory, "decision")
    assert decisions
    for decision in decisions:
        assert decision["bracket"] == bracket_of(decision["trial"], 1, of_each)
        assert decision["value"] > decision["cutoff"]
        assert decision["rung"] in ((1, 2), (2,))[decision["bracket"]]
    ended = dict(zip(result.trials["trial"], result.trials["status"], strict=True))
    assert all(ended[n] == "completed" for n in range(8) if bracket_of(n, 1, of_each) == 2)
    assert set(ended.values()) == {"completed", "stopped"}


@pytest.mark.usefixtures("resources_return")
def test_a_population_copies_and_is_extended(tmp_path: Path) -> None:
    def population(epochs: int) -> Sweep:
        return sweep(
            experiment={**TINY, "train": {**TINY["train"], "epochs": epochs}},
            space={"optim.lr": {"loguniform": [1e-6, 1e-1]}, "model.base_channels": {"choice": [2, 4]}},
            search={"algorithm": "sobol", "num_samples": 4, "seed": 1, "max_concurrent": 1},
            scheduler={"name": "pbt", "interval": 1},
        )

    result = raysweep.sweep(population(2), storage=tmp_path)
    assert list(result.trials["status"]) == ["completed"] * 4
    assert list(result.trials["attempts"]) == [1] * 4, "a segment is no attempt"
    assert len(result.rows) == 8
    (copy,) = result.results.population.to_dict("records")
    donor, own = (result.rows[result.rows["trial"] == copy[who]].set_index("epoch") for who in ("from", "trial"))
    worst, best = own.loc[1, "val_loss"], donor.loc[1, "val_loss"]
    assert own.loc[2, "val_loss"] < worst - 0.5 * (worst - best), "it goes on with the donor's weights"
    assert own.loc[2, "optim.lr"] == copy["lr"] != copy["lr_before"] == own.loc[1, "optim.lr"]
    key = str(result.trials.set_index("trial").loc[copy["trial"], "key"])
    newest = checkpoint.newest_complete(tmp_path / "s" / "trials" / key)
    assert newest is not None
    assert newest.content["progress"]["epoch"] == 3

    run_sweep(population(3), storage=tmp_path)
    again = raysweep.open(tmp_path / "s")
    assert list(again.results.population["epoch"]) == [1, 2]
    assert len(events(tmp_path / "s", "row")) == 12, "no epoch was trained twice"

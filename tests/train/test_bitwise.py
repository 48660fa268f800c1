"""Bitwise mode: the same bytes on 1, 2, 3 and 4 workers, and after any history of interruptions and resizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_exact import Case, digest, run_cases
from helpers_train import gloo, tiny_dataset, tiny_experiment

from raysweep.experiment import Experiment

EVERYTHING = {"data__noise": 0.1, "model__dropout": 0.3, "model__norm": "group", "optim__clip_norm": 0.05}
STOPS = [(3, 2), (1, 5), (6, 4)]
"""Of each history the steps after which 2 workers are stopped, then 1 worker is killed; 3 workers take the rest of 12."""


def bitwise(**overrides: Any) -> Experiment:
    return tiny_experiment(**{"train__exactness": "bitwise", "optim__lr": 1e-2, **overrides})


def cases() -> list[Case]:
    """Short last batches throughout; shards of 2, of 1 and of no samples."""
    sgd = {"optim__name": "sgd", "optim__momentum": 0.9, "train__reduction": "sum", "optim__lr": 1e-3}
    own = {**bitwise().model_dump(exclude={"model"}), "model": {"factory": "helpers_exact:own_net"}}
    return [
        ("plain", bitwise(train__batch_size=16), tiny_dataset(43), 0),
        ("everything", bitwise(**EVERYTHING), tiny_dataset(37), 0),
        ("sgd-sum", bitwise(**sgd), tiny_dataset(21), 0),
        ("batch-below-shards", bitwise(train__batch_size=5, optim__name="adamw", optim__weight_decay=0.1), tiny_dataset(17), 0),
        ("four-shards", bitwise(train__shards=4, **EVERYTHING), tiny_dataset(21), 0),
        ("own-net", Experiment.from_dict(own), tiny_dataset(21), 0),
    ]


def histories(attempt: int) -> list[Case]:
    experiment = bitwise(train__epochs=3, train__checkpoint_every_s=1e-6, **EVERYTHING)
    dataset = tiny_dataset(29)
    return [(f"history{i}", experiment, dataset, (*stops, 0)[attempt]) for i, stops in enumerate(STOPS)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CASE-WORKERS for every case and number of workers; `history0` and so on; `whole`, a history without a stop."""
    directory = tmp_path_factory.mktemp("bitwise")

    def on(workers: int) -> list[Case]:
        return [(f"{name}-{workers}", *rest) for name, *rest in cases()]

    whole = ("whole", *histories(2)[0][1:])
    gloo(2, run_cases, [*on(2), *histories(0)], directory)
    run_cases(0, [*on(1), *histories(1), whole], directory)
    gloo(3, run_cases, [*on(3), *histories(2)], directory)
    gloo(4, run_cases, on(4), directory)
    return directory


@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_weights_optimizer_and_losses_have_the_same_bytes_on_any_number_of_workers(place: Path, name: str) -> None:
    assert len({digest(place / f"{name}-{workers}") for workers in (1, 2, 3, 4)}) == 1


def test_other_training_has_other_bytes(place: Path) -> None:
    assert len({digest(place / f"{name}-1") for name, *_ in cases()}) == len(cases()), "or equality says nothing"


@pytest.mark.parametrize("number", range(len(STOPS)))
def test_stopped_and_killed_and_resumed_on_other_numbers_of_workers_is_the_same_run(place: Path, number: int) -> None:
    assert digest(place / f"history{number}") == digest(place / "whole")
    worlds = [row["world_size"] for row in torch.load(place / f"history{number}" / "rows.pt").values()]
    assert worlds[-1] == 3, "the last attempt must have had something left to do"

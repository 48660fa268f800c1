"""Bitwise mode: the same bytes on 1, 2, 3 and 4 workers, and after any history of interruptions and resizes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_exact import Case, digest, run_cases
from helpers_train import gloo, tiny_dataset, tiny_experiment

WORKERS = [1, 2, 3, 4]
EVERYTHING = {"data__noise": 0.1, "model__dropout": 0.3, "model__norm": "group", "optim__clip_norm": 0.05}


def bitwise(**overrides: Any) -> Any:
    return tiny_experiment(**{"train__exactness": "bitwise", "optim__lr": 1e-2, **overrides})


def cases() -> list[Case]:
    """Short last batches throughout; shards of 2, of 1 and of no samples."""
    sgd = {"optim__name": "sgd", "optim__momentum": 0.9, "train__reduction": "sum", "optim__lr": 1e-3}
    own = {"model": {"factory": "helpers_exact:own_net"}}
    return [
        ("plain", bitwise(train__batch_size=16), tiny_dataset(43), 0),
        ("everything", bitwise(**EVERYTHING), tiny_dataset(37), 0),
        ("sgd-sum", bitwise(**sgd), tiny_dataset(21), 0),
        ("batch-below-shards", bitwise(train__batch_size=5, optim__name="adamw", optim__weight_decay=0.1), tiny_dataset(17), 0),
        ("four-shards", bitwise(train__shards=4, **EVERYTHING), tiny_dataset(21), 0),
        ("own-net", type(bitwise()).from_dict({**bitwise().model_dump(exclude={"model"}), **own}), tiny_dataset(21), 0),
    ]


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    found = {}
    for workers in WORKERS:
        place = tmp_path_factory.mktemp(f"workers{workers}")
        gloo(workers, run_cases, cases(), place)
        found[workers] = {name: digest(place / name) for name, *_ in cases()}
    return found


@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_weights_optimizer_and_losses_have_the_same_bytes_on_any_number_of_workers(
    digests: dict[int, dict[str, str]], name: str
) -> None:
    assert len({digests[workers][name] for workers in WORKERS}) == 1


def test_other_training_has_other_bytes(digests: dict[int, dict[str, str]]) -> None:
    assert len(set(digests[1].values())) == len(cases()), "or equality says nothing"


def test_interrupted_anywhere_and_resumed_on_other_numbers_of_workers_is_the_same_run(tmp_path: Path) -> None:
    """2 workers stopped at a random step, resumed on 1, stopped again, resumed on 3; three such histories of 12 steps."""
    experiment = bitwise(train__epochs=3, **EVERYTHING)
    dataset, generator = tiny_dataset(29), random.Random(3)
    stops = [(generator.randint(1, 6), generator.randint(1, 5)) for _ in range(3)]
    assert any(first % 4 for first, _ in stops), "one must stop inside an epoch"

    def attempts(place: int | None) -> list[Case]:
        return [(str(i), experiment, dataset, 0 if place is None else stop[place]) for i, stop in enumerate(stops)]

    gloo(2, run_cases, attempts(0), tmp_path)
    gloo(1, run_cases, attempts(1), tmp_path)
    gloo(3, run_cases, attempts(None), tmp_path)
    gloo(1, run_cases, [("whole", experiment, dataset, 0)], tmp_path)
    assert len({digest(tmp_path / name) for name in ("0", "1", "2", "whole")}) == 1
    worlds = [{row["world_size"] for row in torch.load(tmp_path / str(i) / "rows.pt").values()} for i in range(3)]
    assert all(3 in seen for seen in worlds), "the last attempt must have had something left to do"

"""Who copies whom in a population, and what becomes of the settings: functions of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.config import Sweep
from raysweep.space import Domain, parse
from raysweep.tune.evolve import Member, exploits, explored, perturbed

SPACE = {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "model.depth": {"choice": [1, 2, 3]}}


def sweep(space: dict[str, Any] = SPACE, metric: str = "val_loss", seed: int = 0, **scheduler: Any) -> Sweep:
    return Sweep.from_dict(
        {
            "space": space,
            "search": {"algorithm": "random", "num_samples": 8, "seed": seed},
            "scheduler": {"name": "pbt", **scheduler},
            "objective": {"metric": metric},
        }
    )


def members(*values: float | None) -> list[Member]:
    return [Member(n, {"optim.lr": 1e-3 * (n + 1), "model.depth": n % 3 + 1}, value) for n, value in enumerate(values)]


def pairs(settings: Sweep, *values: float | None, generation: int = 1) -> dict[int, int]:
    return {e.trial: e.donor for e in exploits(members(*values), settings, generation)}


def test_the_worst_quantile_copies_one_of_the_best() -> None:
    found = pairs(sweep(), 0.1, 0.8, 0.3, 0.2, 0.4, 0.5, 0.9, 0.6)
    assert set(found) == {1, 6}
    assert set(found.values()) <= {0, 3}
    assert len(pairs(sweep(quantile=0.5), *[0.1 * n for n in range(8)])) == 4
    assert pairs(sweep(), 0.3, 0.1, 0.2, 0.4) == {3: 1}, "at least one"


def test_a_high_psnr_is_good() -> None:
    assert pairs(sweep(metric="psnr"), 30.0, 10.0, 20.0, 25.0) == {1: 0}


def test_everybody_without_a_finite_value_copies_even_beyond_the_quantile() -> None:
    assert pairs(sweep(), None, 0.5, None, None) == {0: 1, 2: 1, 3: 1}
    assert pairs(sweep(), None, 0.5, 0.4, 0.3, 0.2, 0.1, 0.6, 0.7).keys() == {0, 7}
    assert pairs(sweep(), None, None, None, None) == {}
    assert pairs(sweep(), 0.5) == {}, "the last one left has nobody to copy"


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=20), st.floats(0.01, 0.5), st.integers(1, 5))
def test_nobody_both_gives_and_takes_and_the_order_does_not_matter(
    values: list[float | None], quantile: float, generation: int
) -> None:
    settings = sweep(quantile=quantile)
    found = exploits(members(*values), settings, generation)
    assert not {e.trial for e in found} & {e.donor for e in found}
    assert {n for n, v in enumerate(values) if v is None} <= {e.trial for e in found} or all(v is None for v in values)
    assert exploits(members(*values)[::-1], settings, generation) == found


def test_a_psnr_decides_as_the_journal_keeps_it() -> None:
    whole, kept = (30.12345678, 30.12345674, 20.0, 25.0), (30.12346, 30.12346, 20.0, 25.0)
    assert pairs(sweep(metric="psnr"), *whole) == pairs(sweep(metric="psnr"), *kept)


def test_seed_generation_and_member_decide_the_draws() -> None:
    def new(seed: int, generation: int) -> list[float]:
        values = (*[0.1] * 8, *[0.9] * 8)
        return [e.overrides["optim.lr"] for e in exploits(members(*values), sweep(seed=seed, quantile=0.5), generation)]

    assert new(0, 1) == new(0, 1)
    assert len({tuple(new(seed, generation)) for seed in (0, 1) for generation in (1, 2)}) == 4
    assert len(set(new(0, 1))) > 4, "each member draws for itself"


def test_numbers_of_the_optimizer_change_and_the_rest_is_copied() -> None:
    space = {**SPACE, "optim.name": {"choice": ["adam", "sgd"]}, "train.batch_size": {"choice": [16, 32]}}
    settings = sweep(space, resample_probability=0.0)
    donor = {"optim.lr": 1e-2, "model.depth": 3, "optim.name": "sgd", "train.batch_size": 32}
    news = [explored(donor, settings, np.random.default_rng(seed)) for seed in range(20)]
    assert {n["optim.lr"] for n in news} == {0.008, 0.012}
    assert all({**n, "optim.lr": 1e-2} == donor for n in news)


def test_resampling_draws_from_the_whole_domain() -> None:
    news = [
        explored({"optim.lr": 1e-2}, sweep(resample_probability=1.0), np.random.default_rng(s))["optim.lr"] for s in range(200)
    ]
    assert min(news) < 3e-4
    assert max(news) > 3e-2
    some = [explored({"optim.lr": 1e-2}, sweep(), np.random.default_rng(s))["optim.lr"] for s in range(400)]
    assert sum(lr not in (0.008, 0.012) for lr in some) == pytest.approx(100, abs=35), "a quarter by default"


@pytest.mark.parametrize(
    ("domain", "value", "down", "up"),
    [
        ({"loguniform": [1e-4, 1e-1]}, 1e-3, 8e-4, 1.2e-3),
        ({"loguniform": [1e-4, 1e-1]}, 9.5e-2, 7.6e-2, 1e-1),
        ({"uniform": [0.1, 1.0]}, 0.11, 0.1, 0.132),
        ({"uniform": [1e-3, 1.0]}, 0.1234567, 0.09876536, 0.148148),
        ({"randint": [0, 11]}, 10, 8, 10),
        ({"randint": [0, 11]}, 1, 0, 2),
        ({"randint": [0, 11]}, 0, 0, 1),
        ({"quniform": [0.0, 1.0, 0.25]}, 0.5, 0.25, 0.75),
        ({"quniform": [0.1, 1.0, 0.3]}, 1.0, 0.7, 1.0),
        ({"quniform": [0.0, 0.95, 0.1]}, 0.9, 0.7, 0.9),
        ({"choice": [0.0, 1e-4, 1e-2]}, 1e-4, 0.0, 1e-2),
        ({"choice": [0.0, 1e-4, 1e-2]}, 1e-2, 1e-4, 1e-4),
        ({"grid": [[0.9, 0.99], [0.5, 0.9]]}, [0.9, 0.99], [0.5, 0.9], [0.5, 0.9]),
        ({"choice": ["1e-3", 2e-3]}, 1e-3, 2e-3, 2e-3),
        ({"choice": [None, 1.0]}, None, 1.0, 1.0),
        ({"choice": [1e-3]}, 1e-3, 1e-3, 1e-3),
        ({"choice": [1e-3, 1e-2]}, 5e-3, 5e-3, 5e-3),
    ],
)
def test_a_copied_value_stays_near_and_inside(domain: dict[str, Any], value: Any, down: Any, up: Any) -> None:
    parsed: Domain = parse(domain)
    assert [perturbed(parsed, value, up=False), perturbed(parsed, value, up=True)] == [down, up]


def test_new_settings_are_understood_like_given_ones() -> None:
    settings = sweep(
        {"optim.lr": {"choice": ["1e-3", "2e-3"]}, "optim.betas": {"choice": [[0.9, 0.99], [0.5, 0.9]]}}, resample_probability=1
    )
    for seed in range(8):
        new = explored({"optim.lr": 1e-3, "optim.betas": [0.9, 0.99]}, settings, np.random.default_rng(seed))
        assert isinstance(new["optim.lr"], float)
        assert isinstance(new["optim.betas"], list)


def test_a_change_that_a_constraint_or_a_condition_does_not_take_leaves_the_copied_settings() -> None:
    base = sweep()
    tight = Sweep.from_dict({**base.model_dump(mode="json", exclude_unset=True), "constraints": ["optim.lr <= 0.001"]})
    wide = [explored({"optim.lr": 1e-3, "model.depth": 2}, base, np.random.default_rng(n))["optim.lr"] for n in range(40)]
    kept = [explored({"optim.lr": 1e-3, "model.depth": 2}, tight, np.random.default_rng(n))["optim.lr"] for n in range(40)]
    assert any(lr > 1e-3 for lr in wide)
    assert kept == [lr if lr <= 1e-3 else 1e-3 for lr in wide]

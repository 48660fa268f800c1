"""Domains: refused where they cannot mean what was written; sampled values stay inside and follow the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from raysweep.space import Domain, parse

Numbers = st.floats(min_value=-1e6, max_value=1e6, allow_subnormal=False)
Positive = st.floats(min_value=1e-9, max_value=1e6)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    kind = draw(st.sampled_from(["uniform", "loguniform", "randint", "quniform", "choice", "grid"]))
    if kind in ("choice", "grid"):
        return Domain(kind, tuple(draw(st.lists(st.integers() | st.text(max_size=4), min_size=1, max_size=8, unique=True))))
    if kind == "randint":
        low = draw(st.integers(-(10**9), 10**9))
        return Domain(kind, (low, low + draw(st.integers(1, 10**6))))
    low, high = sorted((draw(Positive), draw(Positive)) if kind == "loguniform" else (draw(Numbers), draw(Numbers)))
    assume(high > low)
    if kind != "quniform":
        return Domain(kind, (low, high))
    step = (high - low) / draw(st.floats(min_value=1, max_value=20_000))
    assume(0 < step <= high - low)
    return Domain(kind, (low, high, step))


@given(domains(), st.integers(0, 2**32 - 1))
def test_sampled_values_stay_inside_and_follow_the_seed(domain: Domain, seed: int) -> None:
    first, second = np.random.default_rng(seed), np.random.default_rng(seed)
    values = [domain.sample(first) for _ in range(5)]
    assert values == [domain.sample(second) for _ in range(5)]
    for value in values:
        if domain.kind in ("choice", "grid"):
            assert value in domain.args
        elif domain.kind == "randint":
            assert type(value) is int
            assert domain.args[0] <= value < domain.args[1]
        else:
            assert type(value) is float
            assert domain.args[0] <= value <= domain.args[1]


@given(domains())
def test_what_is_written_is_read_back(domain: Domain) -> None:
    assert parse(domain.as_dict()) == domain
    assert isinstance(domain.describe(), str)


@given(domains())
def test_listed_values_are_inside_and_sampled_ones_are_listed(domain: Domain) -> None:
    values = domain.values()
    if values is None:
        return
    assert domain.sample(np.random.default_rng(0)) in values
    if domain.kind == "quniform":
        assert domain.args[0] <= min(values) <= max(values) <= domain.args[1]


def test_other_seeds_give_other_values() -> None:
    domain = parse({"loguniform": [1e-4, 1e-1]})
    assert len({domain.sample(np.random.default_rng(seed)) for seed in range(20)}) == 20


def test_loguniform_gives_each_decade_its_share() -> None:
    domain, rng = parse({"loguniform": [1e-4, 1e-1]}), np.random.default_rng(0)
    values = np.array([domain.sample(rng) for _ in range(3000)])
    shares = [np.mean((values >= low) & (values < 10 * low)) for low in (1e-4, 1e-3, 1e-2)]
    assert np.allclose(shares, 1 / 3, atol=0.05)


def test_sampled_floats_are_short_enough_to_read() -> None:
    value = parse({"uniform": [0, 1]}).sample(np.random.default_rng(3))
    assert value == float(f"{value:.6g}")
    assert parse({"uniform": [0, 1]}).rounded(0.123456789) == 0.123457


def test_quniform_steps_do_not_drift() -> None:
    assert parse({"quniform": [0, 0.3, 0.1]}).values() == [0.0, 0.1, 0.2, 0.3]
    assert parse({"quniform": [1, 2, 0.4]}).values() == [1.0, 1.4, 1.8]


def test_corners_are_the_ends_that_can_be_drawn() -> None:
    assert parse({"randint": [1, 5]}).corners() == [1, 4]
    assert parse({"randint": [1, 5]}).values() == [1, 2, 3, 4]
    assert parse({"uniform": [0, 2]}).corners() == [0.0, 2.0]
    assert parse({"grid": [3, 1, 2]}).corners() == [3, 1, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"uniform": [1, 0]}, "low must be below high, got low=1, high=0"),
        ({"uniform": [1, 1]}, "low must be below high"),
        ({"loguniform": ["1e-1", "1e-4"]}, "low must be below high"),
        ({"loguniform": [0, 1]}, "low must be above 0"),
        ({"loguniform": [-1, 1]}, "low must be above 0"),
        ({"uniform": [0, float("inf")]}, "finite"),
        ({"uniform": [float("nan"), 1]}, "finite"),
        ({"uniform": [0, 10**400]}, "takes numbers"),
        ({"uniform": ["low", 1]}, "takes numbers"),
        ({"uniform": [False, True]}, "takes numbers"),
        ({"uniform": [0, [1]]}, "takes numbers"),
        ({"uniform": [0, 1, 2]}, r"takes \[low, high\]"),
        ({"uniform": 3}, r"takes \[low, high\]"),
        ({"quniform": [0, 1]}, r"takes \[low, high, step\]"),
        ({"quniform": [0, 1, 0]}, "step must be above 0"),
        ({"quniform": [0, 1, -0.1]}, "step must be above 0"),
        ({"quniform": [0, 1, 2]}, "at most high - low"),
        ({"randint": [1.5, 3]}, "whole numbers"),
        ({"randint": [3, 3]}, "low must be below high"),
        ({"grid": []}, "at least one value"),
        ({"choice": []}, "at least one value"),
        ({"grid": [1, 2, 1]}, "lists 1 twice"),
        ({"grid": [1, 1.0]}, "lists 1.0 twice"),
        ({"choice": ["a", "a"]}, "lists 'a' twice"),
        ({"grid": "abc"}, "takes"),
        ({"unifrom": [0, 1]}, "nearest: uniform"),
        ({"uniform": [0, 1], "grid": [1]}, "one key"),
        ({}, "one key"),
        ([1, 2], "grid"),
        (3, "one key"),
    ],
)
def test_a_domain_that_cannot_be_meant_is_refused_with_the_rule(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(value)


def test_true_and_one_are_two_values() -> None:
    assert parse({"grid": [1, True]}).values() == [1, True]


def test_bounds_written_as_text_are_numbers() -> None:
    assert parse({"loguniform": ["1e-4", "1e-1"]}).args == (1e-4, 1e-1)

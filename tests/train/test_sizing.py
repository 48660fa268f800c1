"""How many workers a run gets: what fits machine by machine, and growing only when it lasts and pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.cluster.resources import Machine
from raysweep.train.sizing import Resizer, fitting, target


@pytest.mark.parametrize(
    ("free", "cpus", "gpus", "held", "fits"),
    [
        ({}, 1, 0, {}, 0),
        ({"a": Machine(3, 0), "b": Machine(3, 0)}, 2, 0, {}, 2),  # 6 CPUs, but no worker lies on two machines
        ({"a": Machine(0, 0), "b": Machine(2, 0)}, 2, 0, {"a": 2}, 3),
        ({"a": Machine(4, 1), "b": Machine(4, 0)}, 1, 1, {}, 1),
        ({"a": Machine(1, 4)}, 2, 1, {}, 0),
        ({"b": Machine(0, 0)}, 1, 0, {"gone": 5, "b": 1}, 1),  # what is gone or about to go will not keep its workers
        ({"a": Machine(1.9999999999, 0)}, 2, 0, {}, 1),  # floats as Ray tells them
        ({"a": Machine(1.9, 0)}, 2, 0, {}, 0),
        ({"a": Machine(-1.0, 0)}, 1, 0, {"a": 2}, 2),
    ],
)
def test_what_fits(free: dict[str, Machine], cpus: int, gpus: int, held: dict[str, int], fits: int) -> None:
    assert fitting(free, cpus=cpus, gpus=gpus, held=held) == fits


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 4)), max_size=6), st.integers(1, 4), st.integers(0, 2))
def test_what_fits_is_the_same_whether_the_workers_run_or_not(nodes: list[tuple[int, int]], cpus: int, gpus: int) -> None:
    empty = {str(i): Machine(c, g) for i, (c, g) in enumerate(nodes)}
    fits = fitting(empty, cpus=cpus, gpus=gpus, held={})
    held = {name: machine.room(cpus, gpus) for name, machine in empty.items()}
    full = {name: Machine(m.cpus - held[name] * cpus, m.gpus - held[name] * gpus) for name, m in empty.items()}
    assert fitting(full, cpus=cpus, gpus=gpus, held=held) == fits == sum(held.values())


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8), st.integers(0, 8))
def test_the_target_stays_in_its_bounds_and_never_shrinks(current: int, fits: int, low: int, more: int) -> None:
    high = low + more
    current = min(current, high)
    size = target(current, fits, low, high)
    assert current <= size <= high
    assert size == current or size == min(fits, high) >= low
    if current == 0:
        assert size == (min(fits, high) if fits >= low else 0)


def asked(resizer: Resizer, fits: list[int], steps_left: int = 1000, seconds: float | None = 1.0) -> list[int | None]:
    return [resizer.check(number, steps_left, seconds) for number in fits]


@pytest.mark.parametrize(
    ("fits", "answers"),
    [
        ([1, 1, 1], [None, None, None]),
        ([2, 2], [None, 2]),
        ([2, 1, 2, 2], [None, None, None, 2]),  # gone again in between
        ([2, 3, 4, 4], [None, None, None, 4]),  # machines join one after the other: one resize, not three
        ([9, 7], [None, 4]),  # beyond `high` it makes no difference
        ([0, 0, 0], [None, None, None]),  # fewer than run: nothing to ask for
    ],
)
def test_growth_is_asked_for_when_it_lasts(fits: list[int], answers: list[int | None]) -> None:
    assert asked(Resizer(1, 1, 4, pause_s=10.0), fits) == answers


@pytest.mark.parametrize(
    ("steps_left", "seconds", "pause_s", "answer"),
    [
        (100, 1.0, 49.0, 4),  # 2 -> 4 saves half of 100 s
        (100, 1.0, 50.0, None),
        (0, 1.0, 0.0, None),
        (100, None, 0.0, None),  # the pace is not known yet
        (100, 0.01, 10.0, None),
    ],
)
def test_growth_has_to_pay(steps_left: int, seconds: float | None, pause_s: float, answer: int | None) -> None:
    assert asked(Resizer(2, 1, 4, pause_s), [4, 4], steps_left, seconds)[-1] == answer


def test_what_did_not_pay_is_asked_for_once_the_pace_is_known() -> None:
    resizer = Resizer(1, 1, 2, pause_s=5.0)
    assert [resizer.check(2, 100, None), resizer.check(2, 100, None), resizer.check(2, 100, 0.5)] == [None, None, 2]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 4))
def test_it_never_asks_beyond_high_nor_for_fewer(fits: list[int], current: int, more: int) -> None:
    high = current + more
    answers = asked(Resizer(current, 1, high, pause_s=0.0), fits)
    assert all(answer is None or current < answer <= high for answer in answers)


@pytest.mark.parametrize(
    ("high", "steps_left", "seconds", "answer"),
    [
        (2, 1000, 1.0, 2),  # at the first look: somebody waits
        (0, 1000, 1.0, 1),
        (2, 1000, None, 2),
        (2, 10, 1.0, None),  # it ends before it could start again
        (2, 11, 1.0, 2),
    ],
)
def test_a_share_that_falls_is_gone_down_to_at_once(
    high: int, steps_left: int, seconds: float | None, answer: int | None
) -> None:
    resizer = Resizer(4, 1, 8, pause_s=10.0)
    resizer.high = high
    assert resizer.check(4, steps_left, seconds) == answer

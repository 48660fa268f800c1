"""List scheduling of trials whose durations are known: examples worked out by hand, and rules that hold for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raysweep.tune.cost.simulate import Load, play


def test_the_next_trial_takes_the_place_that_is_free_first() -> None:
    # Places: A 0-3 and 3-5 (third trial), B 0-4.
    played = play([Load(1.0, 3), Load(2.0, 2), Load(2.0, 1)], [0.0, 0.0])
    assert played.wall_s == 5.0
    assert played.device_s == 3 + 4 + 2
    assert played.last_epochs == [3, 2, 1]


def test_what_comes_before_a_trial_takes_time_and_no_device() -> None:
    played = play([Load(1.0, 2, before_s=0.5), Load(1.0, 2, before_s=0.5)], [4.0])
    assert played.wall_s == 4 + 2 * 2.5
    assert played.device_s == 4


def test_a_place_that_opens_later_takes_what_is_left() -> None:
    assert play([Load(1.0, 4), Load(1.0, 4)], [0.0, 3.0]).wall_s == 7.0
    assert play([Load(1.0, 1), Load(1.0, 1)], [0.0, 3.0]).wall_s == 4.0, "both places are taken at the start"
    assert play([Load(1.0, 4), Load(1.0, 1)], [3.0, 0.0]).wall_s == 4.0, "the first trial takes the first place that opens"


def test_a_trial_goes_on_after_its_last_epoch_and_counts_its_workers() -> None:
    played = play([Load(1.0, 5, first_epoch=4, workers=3)], [0.0])
    assert (played.wall_s, played.device_s, played.last_epochs) == (2.0, 6.0, [5])


def test_a_rule_is_asked_in_the_order_of_time_and_frees_the_place() -> None:
    asked = []

    def stops(trial: int, epoch: int) -> bool:
        asked.append((trial, epoch))
        return trial == 0

    played = play([Load(2.0, 9), Load(1.5, 2), Load(0.5, 2)], [0.0, 0.0], stops)
    # At 1.5 trial 1 has an epoch, at 2 trial 0 is stopped and trial 2 begins; at 2.5 it has one, at 3 both end.
    assert asked == [(1, 1), (0, 1), (2, 1)]
    assert played.last_epochs == [1, 2, 2]
    assert played.wall_s == 3.0


def test_the_budget_ends_all_at_the_next_epochs_end() -> None:
    loads = [Load(1.0, 10), Load(1.0, 10), Load(1.0, 10)]
    assert play(loads, [0.0, 0.0], wall_s=2.5).wall_s == 3.0
    spent = play(loads, [0.0, 0.0], device_s=5)
    assert spent.device_s == 5
    assert spent.last_epochs == [3, 2, 0]


LOADS = st.lists(
    st.builds(Load, st.floats(0.1, 10), st.integers(1, 6), before_s=st.floats(0, 2)), min_size=1, max_size=12
)  # fmt: skip


@given(LOADS, st.integers(1, 5))
def test_the_wall_time_lies_between_the_bounds_of_list_scheduling(loads: list[Load], places: int) -> None:
    each = [load.before_s + load.epoch_s * load.last_epoch for load in loads]
    wall = play(loads, [0.0] * places).wall_s
    least = max(max(each), sum(each) / places)
    assert least - 1e-6 <= wall <= sum(each) / places + max(each) + 1e-6, "Graham, 1969"


@given(LOADS, st.integers(1, 5))
def test_more_epochs_take_longer(loads: list[Load], places: int) -> None:
    more = [Load(load.epoch_s, load.last_epoch + 1, before_s=load.before_s) for load in loads]
    assert play(more, [0.0] * places).device_s > play(loads, [0.0] * places).device_s
    assert play(more, [0.0]).wall_s > play(loads, [0.0]).wall_s

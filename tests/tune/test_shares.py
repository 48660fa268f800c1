"""How elastic trials share a cluster: nobody starves, survivors take what is free, and nobody's share flaps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.cluster.resources import Allocation, Machine
from raysweep.errors import ClusterError
from raysweep.tune import shares
from raysweep.tune.shares import Share, ShareCallback, fair_shares


@pytest.mark.parametrize(
    ("left", "running", "each", "others"),
    [
        (16, ["a", "b", "c", "d"], {"a": 2, "b": 2, "c": 2, "d": 2}, 2),  # many wait
        (16, ["a"], {"a": 2}, 2),  # the others are about to start
        (3, ["d", "b", "a"], {"d": 3, "b": 3, "a": 2}, 2),  # what is over: who has run longest
        (2, ["b", "a"], {"b": 4, "a": 4}, 4),
        (1, ["b"], {"b": 6}, 6),  # no more than scale.workers allows
        (0, [], {}, 6),
    ],
)
def test_survivors_take_what_is_free(left: int, running: list[str], each: dict[str, int], others: int) -> None:
    found = fair_shares(8, 4, left, running, 1, 6)
    assert (found.each, found.others) == (each, others)


counts = st.integers(1, 40)


@given(counts, counts, counts, st.integers(0, 40), st.integers(1, 4), st.integers(0, 8))
def test_shares_stay_in_their_bounds_and_fit_together(
    workers: int, at_once: int, left: int, running: int, low: int, more: int
) -> None:
    at_once = max(1, min(at_once, workers // low))
    keys = [str(n) for n in range(min(running, at_once, left))]
    found = fair_shares(workers, at_once, left, keys, low, low + more)
    assert all(low <= share <= low + more for share in [*found.each.values(), found.others])
    assert found.workers <= max(workers, low), "so every trial finds room for its share"
    assert max(found.each.values(), default=found.others) - found.others <= 1, "fair"


@given(counts, st.integers(1, 12), st.integers(0, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=40))
def test_no_share_falls_while_trials_start_and_end(
    workers: int, at_once: int, waiting: int, moves: list[tuple[bool, int]]
) -> None:
    at_once = min(at_once, workers)
    running: list[str] = []
    before: dict[str, int] = {}
    for number, (starts, which) in enumerate(moves):
        if starts and waiting and len(running) < at_once:
            running, waiting = [*running, str(number)], waiting - 1
        elif running:
            running = [key for place, key in enumerate(running) if place != which % len(running)]
        found = fair_shares(workers, at_once, waiting + len(running), running, 1, 16).each
        assert all(found[key] >= before[key] for key in set(found) & set(before))
        before = found


class Sweep:
    """A recorder's states, a cluster and a clock, all set by hand."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, trials: int = 3, cpus: int = 4) -> None:
        self.machines = {"m": Machine(cpus, 0)}
        self.now, self.writes, self.asked = 0.0, 0, list[int]()
        self.file = directory / shares.FILE
        self.can_grow_to: tuple[int, int] | None = None
        write = shares.write_atomically

        def counted(path: Path, content: bytes) -> None:
            self.writes += 1
            write(path, content)

        monkeypatch.setattr(shares, "write_atomically", counted)
        monkeypatch.setattr(shares.capacity, "all_machines", lambda: self.machines)
        monkeypatch.setattr(shares.capacity, "can_grow_to", lambda: self.can_grow_to)
        monkeypatch.setattr(shares.capacity, "ask_autoscaler", lambda workers, *_each: self.asked.append(workers))
        states = {
            n: SimpleNamespace(trial=SimpleNamespace(key=f"k{n}"), status="waiting", has_ended=False) for n in range(trials)
        }
        self.planned = trials
        self.recorder: Any = SimpleNamespace(
            states=states, num_left=lambda: self.planned - sum(state.has_ended for state in states.values())
        )

    def callback(self, directory: Path, at_once: int = 2) -> ShareCallback:
        return ShareCallback(directory, self.recorder, Allocation(1, 1, 0, 8), at_once, 10.0, lambda: self.now)

    def set(self, number: int, status: str) -> None:
        state = self.recorder.states[number]
        state.status, state.has_ended = status, status not in ("waiting", "running")

    def after(self, seconds: float, callback: ShareCallback) -> dict[str, int]:
        self.now += seconds
        callback.on_step_end(0, [])
        return dict(json.loads(self.file.read_text())["each"])


def test_the_file_follows_the_trials_and_is_written_only_for_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch)
    callback = sweep.callback(tmp_path)
    share = Share(tmp_path, "k1", 1, lambda: sweep.now)
    assert share() == 2, "a trial that starts before the driver has seen it finds its share"
    sweep.set(0, "running")
    sweep.set(1, "running")
    assert sweep.after(1, callback) == {"k0": 2, "k1": 2}
    sweep.set(0, "stopped")
    sweep.set(2, "running")
    assert sweep.after(1, callback) == {"k1": 2, "k2": 2}, "the third takes the place of the first"
    sweep.set(2, "completed")
    assert sweep.after(0.5, callback) == {"k1": 2, "k2": 2}, "not at each of Ray Tune's events"
    writes = sweep.writes
    assert sweep.after(0.5, callback) == {"k1": 4}
    assert share() == 4
    for _ in range(5):
        sweep.after(1, callback)
    assert sweep.writes == writes + 1


def test_who_starts_finds_a_share_that_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last member of a generation has all workers; the next generation's first must not begin with as many."""
    sweep = Sweep(tmp_path, monkeypatch, trials=3)
    callback = sweep.callback(tmp_path)
    sweep.set(0, "running")
    sweep.recorder.num_left = lambda: 1
    assert sweep.after(1, callback) == {"k0": 4}
    sweep.set(0, "waiting")
    sweep.set(1, "running")
    sweep.recorder.num_left = lambda: 3
    callback.on_trial_start(0, [], None)
    assert json.loads(sweep.file.read_text())["each"] == {"k1": 2}


def test_trials_that_a_search_has_still_to_think_of_keep_their_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch, trials=1)
    sweep.planned = 5
    callback = sweep.callback(tmp_path)
    sweep.set(0, "running")
    assert sweep.after(1, callback) == {"k0": 2}
    sweep.planned = 1  # it has found no other
    assert sweep.after(1, callback) == {"k0": 4}


def test_machines_that_come_and_go_change_the_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch, trials=2)
    callback = sweep.callback(tmp_path)
    for number in (0, 1):
        sweep.set(number, "running")
    sweep.machines["n"] = Machine(3, 0)
    assert sweep.after(9, callback) == {"k0": 2, "k1": 2}
    assert sweep.after(1, callback) == {"k0": 4, "k1": 3}
    del sweep.machines["n"], sweep.machines["m"]
    assert sweep.after(10, callback) == {"k0": 4, "k1": 3}, "no machine at all is a head that starts again"
    sweep.machines["m"] = Machine(1, 0)
    assert sweep.after(10, callback) == {"k0": 1, "k1": 1}, "never under the smallest number"

    def silent() -> Any:
        raise ClusterError("the Ray cluster does not answer")

    monkeypatch.setattr(shares.capacity, "all_machines", silent)
    assert sweep.after(10, callback) == {"k0": 1, "k1": 1}


def test_an_autoscaler_is_asked_for_all_shares_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch)
    sweep.can_grow_to = (6, 0)
    callback = sweep.callback(tmp_path)
    sweep.set(0, "running")
    sweep.after(1, callback)
    sweep.set(0, "completed")
    sweep.set(1, "completed")
    sweep.after(1, callback)
    callback.close()
    assert sweep.asked == [6, 6, 6, 0]


def test_a_share_that_cannot_be_read_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch)
    assert Share(tmp_path, "k0", 1)() == 1, "the smallest number before there is a file"
    sweep.callback(tmp_path)
    share = Share(tmp_path, "k0", 1, lambda: sweep.now)
    assert share() == 2
    sweep.file.unlink()
    sweep.now += 5
    assert share() == 2


def test_a_full_disk_does_not_end_the_sweep_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, monkeypatch, trials=2)
    callback = sweep.callback(tmp_path)
    sweep.set(0, "completed")

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shares, "write_atomically", full)
        sweep.after(1, callback)
    sweep.set(1, "running")
    assert sweep.after(1, callback) == {"k1": 4}, "it is written when there is room again"

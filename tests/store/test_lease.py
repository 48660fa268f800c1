"""Two that want one place: who holds it is told, a dead holder's lease goes stale, and a restart does not wait for itself."""

from __future__ import annotations

import json

import pytest
from helpers_mirror import MemoryStore

from raysweep.errors import StoreError
from raysweep.store.lease import NAME, STALE_AFTER_S, Lease, LostLease


class Clock:
    """Seconds that pass while somebody sleeps; `meanwhile` is what happens then."""

    def __init__(self) -> None:
        self.now, self.slept = 1e9, 0.0

    def __call__(self) -> float:
        return self.now

    def meanwhile(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.now, self.slept = self.now + seconds, self.slept + seconds
        self.meanwhile()


def lease(store: MemoryStore, home: str, clock: Clock, said: list[str] | None = None) -> Lease:
    return Lease(store, "s3://b/s", home, (said if said is not None else []).append, clock, clock.sleep)


def test_a_holder_that_is_alive_is_told_and_keeps_it() -> None:
    store, clock, said = MemoryStore(), Clock(), list[str]()
    holder = lease(store, "here", clock)
    holder.acquire()
    clock.meanwhile = holder.renew  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"s3://b/s is in use by process \d+ on .*--fresh"):
        lease(store, "there", clock, said).acquire()
    assert "looking for 60 s whether it still is" in said[0]
    holder.check()


def test_a_dead_holders_lease_is_taken_when_it_has_not_changed_for_a_minute() -> None:
    store, clock = MemoryStore(), Clock()
    lease(store, "here", clock).acquire()
    clock.slept = 0
    second = lease(store, "there", clock)
    second.acquire()
    assert STALE_AFTER_S <= clock.slept <= STALE_AFTER_S + 5
    second.check()


def test_a_lease_of_long_ago_and_one_that_is_let_go_need_no_waiting() -> None:
    store, clock = MemoryStore(), Clock()
    lease(store, "here", clock).acquire()
    clock.now += 3600
    clock.slept = 0
    second = lease(store, "there", clock)
    second.acquire()
    assert clock.slept < 5
    second.release()
    assert NAME not in store.objects
    clock.slept = 0
    lease(store, "elsewhere", clock).acquire()
    assert clock.slept < 5


def test_a_restart_in_the_same_directory_does_not_wait_for_its_killed_self() -> None:
    store, clock = MemoryStore(), Clock()
    first = lease(store, "here", clock)
    first.acquire()
    clock.slept = 0
    lease(store, "here", clock).acquire()
    assert clock.slept < 5
    with pytest.raises(LostLease, match=r"process \d+"):
        first.check()
    before = store.objects[NAME]
    first.release()
    assert store.objects[NAME] == before, "it lets go only what is its own"


def test_of_two_that_come_at_once_one_gives_way() -> None:
    store, clock = MemoryStore(), Clock()
    first, second = lease(store, "here", clock), lease(store, "there", clock)

    def comes_too() -> None:
        clock.meanwhile = lambda: None  # type: ignore[method-assign]
        second._write()  # it had looked before the first one wrote

    clock.meanwhile = comes_too  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="in use by"):
        first.acquire()
    second.check()


def test_a_lease_that_somebody_deleted_is_lost_and_an_unreadable_one_is_nobodys() -> None:
    store, clock = MemoryStore(), Clock()
    holder = lease(store, "here", clock)
    holder.acquire()
    store.delete(NAME)
    with pytest.raises(LostLease, match="was deleted"):
        holder.renew()
    store.put(NAME, b"torn {")
    holder.acquire()
    assert json.loads(store.objects[NAME])["home"] == "here"
    assert len(store.objects[NAME]) == 512, "always of one size"


def test_a_network_that_fails_twice_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    store, clock, left = MemoryStore(), Clock(), [2]

    def before(_what: str, _name: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError("reset by peer")

    store.before = before
    lease(store, "here", clock).acquire()
    assert left == [0]

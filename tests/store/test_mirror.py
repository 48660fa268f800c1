"""A copy that is good to go on from at every moment, whatever is killed and whatever the network does."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from helpers_mirror import LAST_EPOCH, Growing, MemoryStore
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.store.directory import SweepDirectory
from raysweep.store.lease import Lease
from raysweep.store.mirror import Mirror
from raysweep.store.parts import chain, joined, parse
from raysweep.store.sent import Sent
from raysweep.store.tail import Tail


def mirror(directory: SweepDirectory, store: MemoryStore, said: list[str] | None = None, **options: Any) -> Mirror:
    sent = Sent(directory.path, "memory")
    lease = Lease(store, "memory", sent.home, sleep=lambda _seconds: None)
    lease.acquire()
    return Mirror(directory, store, "memory", lease, sent, (said if said is not None else []).append, **options)


def copied(store: MemoryStore) -> bytes:
    return joined(store, chain(store.list()))


def check_good_to_go_on_from(store: MemoryStore, local: bytes) -> None:
    journal = copied(store)
    assert local.startswith(journal)
    events = [json.loads(line) for line in journal.splitlines()]
    rows = {(e["row"][0], e["row"][1]) for e in events if "row" in e}
    for name in store.list("trials"):
        _, key, file = name.split("/")
        number, epoch = int(key[3:]), int(file[5:14]) if file.startswith("ckpt") else 0
        if file.endswith(".json"):
            assert len(store.objects[name.replace(".json", ".pt")]) == json.loads(store.objects[name])["size"]
            missing = {(number, e) for e in range(1, epoch)} - rows  # its own row is told again
            assert not missing, f"{name} builds on rows that would never be told again: {missing}"
    for number in (e["trial"] for e in events if e.get("event") == "end"):
        assert store.objects.get(f"trials/key{number}/best.pt") == f"best of {LAST_EPOCH}".encode()


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), killed_at=st.integers(1, 120))
def test_killed_at_any_moment_the_copy_is_good_to_go_on_from(seed: int, killed_at: int) -> None:
    class Killed(BaseException):
        pass

    draw, left = random.Random(seed), killed_at
    with tempfile.TemporaryDirectory() as folder:
        store = MemoryStore()
        growing = Growing(SweepDirectory.create(Path(folder), "s"))
        sending = mirror(growing.directory, store)

        def goes_on() -> None:  # the sweep does not wait for its copy
            for _ in range(draw.choice([0, 0, 1, 3])):
                growing.epoch(draw.randrange(3), draw.random() < 0.5)

        longest, read = 0, sending._tail.read

        def before(what: str, name: str) -> None:
            nonlocal left, longest
            assert len(copied(store)) >= longest, "the copy never knows less than it did"
            check_good_to_go_on_from(store, growing.directory.journal.read_bytes())
            left, longest = left - 1, len(copied(store))
            if left == 0:
                raise Killed
            goes_on()

        def reading() -> int:
            goes_on()
            end = read()
            goes_on()
            return end

        store.before, sending._tail.read = before, reading  # type: ignore[method-assign]
        try:
            for _ in range(20):
                growing.epoch(draw.randrange(3), draw.random() < 0.5)
                sending.send()
        except Killed:
            pass
        growing.journal.close()
        check_good_to_go_on_from(store, growing.directory.journal.read_bytes())


def test_the_end_leaves_all_that_is_needed_and_no_more(tmp_path: Path) -> None:
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store, every_s=0.01)
    sending.start()
    for _ in range(LAST_EPOCH):
        for number in growing.epochs:
            growing.epoch(number, checkpoint_first=True)
        time.sleep(0.03)
    (growing.directory.path / "manifest.json").write_text("{}")
    growing.journal.close()
    sending.close()
    assert sending.unsent == ""
    assert copied(store) == growing.directory.journal.read_bytes()
    names = set(store.list()) - {"lease.json"}
    ckpts = [f"ckpt-{epoch:09d}.{ending}" for epoch in (LAST_EPOCH - 1, LAST_EPOCH) for ending in ("pt", "json")]
    trials = {f"trials/key{number}/{name}" for number in range(3) for name in [*ckpts, "best.pt"]}
    assert {n for n in names if not n.startswith("journal/")} == trials | {"manifest.json"}
    assert len(chain(names)) == len([n for n in names if n.startswith("journal/")]) == 1


def test_what_a_stopped_trial_saves_after_its_end_is_sent(tmp_path: Path) -> None:
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store)
    sending.send()
    growing.row(1, 1)
    growing.journal.event("end", trial=1, status="stopped", reason={})
    sending.send()
    growing.checkpoint(1, 1)
    sending.send()
    assert store.objects["trials/key1/best.pt"] == b"best of 1"
    assert "trials/key1/ckpt-000000001.json" in store.objects
    growing.journal.close()


def test_who_copies_after_its_end_is_not_ahead_of_its_rows(tmp_path: Path) -> None:
    """A member of a population that had diverged in what was its last epoch lives on while the journal of its end is sent."""
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    sending, read = mirror(growing.directory, store), Tail.read
    sending.send()
    growing.epoch(1, checkpoint_first=False)
    growing.journal.event("end", trial=1, status="diverged", reason={})

    def then_it_lives_on(tail: Tail) -> int:
        end = read(tail)
        if growing.epochs[1] == 1:
            growing.journal.event("population", trial=1, generation=1, epoch=1, overrides={}, **{"from": 0})
            growing.journal.event("run", trial=1)
            for _ in range(2):
                growing.epoch(1, checkpoint_first=False)
        return end

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tail, "read", then_it_lives_on)
        sending.send()
    journal = copied(store)
    assert b'"population"' not in journal
    assert not [name for name in store.list("trials/key1") if name.endswith("3.json")], "its rows 2 and 3 are not there"
    growing.journal.close()
    sending.send()
    assert "trials/key1/ckpt-000000003.json" in store.list("trials/key1")


def test_pieces_of_a_journal_end_with_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine goes on after the last whole line, whose end must be the part's."""
    monkeypatch.setattr("raysweep.store.mirror.PART_BYTES", 100)
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    for epoch in range(1, 50):
        growing.row(0, epoch)
    growing.journal.close()
    put: list[str] = []
    store.before = lambda what, name: put.append(name) if what == "put" else None
    mirror(growing.directory, store).send()
    content = growing.directory.journal.read_bytes()
    ends = [part.end for part in map(parse, put) if part]
    assert len(ends) > 5
    assert all(content[:end].endswith(b"\n") for end in ends)
    assert copied(store) == content


def test_a_long_journal_becomes_parts_and_only_the_last_one_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysweep.store.mirror.PART_BYTES", 1000)
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store)
    written: list[str] = []
    store.before = lambda what, name: written.append(name) if what == "put" else None
    for epoch in range(1, 200):
        growing.row(0, epoch)
        sending.send()
    growing.journal.close()
    content = growing.directory.journal.read_bytes()
    assert copied(store) == content
    parts = chain(store.list())
    assert 5 < len(parts) <= len(content) / 1000 + 1
    assert len(set(written)) == len(written), "no object is ever changed"


def test_a_store_that_is_away_for_a_while_gets_it_later(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    growing = Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store, said, every_s=0.005)
    sending.start()
    until = time.monotonic() + 60
    while not copied(store) and time.monotonic() < until:
        time.sleep(0.005)
    store.is_reachable = False
    growing.epoch(0, checkpoint_first=False)
    while not said and time.monotonic() < until:
        time.sleep(0.005)
    growing.epoch(1, checkpoint_first=False)
    store.is_reachable = True
    growing.journal.close()
    sending.close()
    assert said == ["note: memory: no route to host; the sweep goes on, and what is missing there is sent later"]
    assert sending.unsent == ""
    assert copied(store) == growing.directory.journal.read_bytes()
    assert {"trials/key0/best.pt", "trials/key1/best.pt"} <= set(store.list())


def test_a_store_that_stays_away_is_given_up_at_the_end(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    growing = Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store, said, every_s=0.01, give_up_after_s=0.2)
    store.is_reachable = False
    sending.start()
    growing.journal.close()
    began = time.monotonic()
    sending.close()
    assert time.monotonic() - began > 0.1, "not at the first failure; and it ends"
    assert sending.unsent == "no route to host"


def test_who_has_lost_the_lease_writes_no_more(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    growing = Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store, said, every_s=0.01)
    sending.send()
    Lease(store, "memory", "another home", sleep=lambda _seconds: None, clock=lambda: 1e12).acquire()
    before = dict(store.objects)
    growing.epoch(0, checkpoint_first=True)
    growing.journal.close()
    sending.start()
    sending.close()
    assert store.objects == before
    assert "has taken memory" in sending.unsent
    assert len(said) == 1


def test_a_restart_sends_what_its_killed_driver_had_not(tmp_path: Path) -> None:
    """best.pt of a trial that had ended: nothing in the journal would tell of it again."""
    store, growing = MemoryStore(), Growing(SweepDirectory.create(tmp_path, "s"))
    sending = mirror(growing.directory, store)
    for _ in range(LAST_EPOCH):
        growing.epoch(0, checkpoint_first=False)
    sending.send()
    growing.checkpoint(0, LAST_EPOCH + 1)  # saved after the last round
    growing.journal.close()
    put: list[str] = []
    store.before = lambda what, name: put.append(name) if what == "put" else None
    mirror(growing.directory, store).send()
    assert store.objects["trials/key0/best.pt"] == f"best of {LAST_EPOCH + 1}".encode()
    assert sorted(set(put)) == [
        "lease.json", "trials/key0/best.pt", "trials/key0/ckpt-000000006.json", "trials/key0/ckpt-000000006.pt"
    ], "and nothing twice"  # fmt: skip

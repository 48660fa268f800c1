"""A sweep whose machine is gone goes on elsewhere: what is fetched, what is refused, and what two machines cannot mix."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from helpers_mirror import LAST_EPOCH, Growing, MemoryStore

from raysweep.errors import StoreError
from raysweep.store.directory import SweepDirectory
from raysweep.store.remote import Place, RemotePlace, open_place

SWEEP = {"space": {"optim.lr": {"grid": [1e-3, 1e-2]}}}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.store.lease._SETTLE_S", 0.0)
    monkeypatch.setattr("raysweep.store.lease._LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("raysweep.store.lease.STALE_AFTER_S", 0.1)


class Machine:
    """A working directory on one machine, and the place that all share."""

    def __init__(self, path: Path, store: MemoryStore) -> None:
        self.store, self.said = store, list[str]()
        self.local = path
        self.place = self.start()

    def start(self) -> RemotePlace:
        """A new process."""
        self.place = RemotePlace("memory://bucket", self.store, self.local, self.said.append, every_s=0.01, give_up_after_s=0.1)
        return self.place

    @property
    def directory(self) -> SweepDirectory:
        return SweepDirectory(self.local / "s")

    def trains(self, *, epochs: int, is_killed: bool = False, going_on: tuple[str, ...] = ()) -> None:
        """Go on with the sweep `s` by so many epochs of each trial, and end, or be killed when they are sent."""
        self.start().fetch("s")
        is_new = not self.directory.journal.exists()
        directory = SweepDirectory.create(self.local, "s") if is_new else self.directory
        with directory.locked(), self.place.kept(directory, going_on, is_new):
            growing = Growing(directory, SWEEP)
            growing.epochs = {number: self.epochs(number) for number in growing.epochs}
            for _ in range(epochs):
                for number in growing.epochs:
                    growing.epoch(number, checkpoint_first=True)
            growing.journal.close()
            if is_killed:
                lease = self.store.objects["s/lease.json"]
        if is_killed:
            self.store.objects["s/lease.json"] = lease

    def epochs(self, number: int) -> int:
        names = [p.stem for p in self.directory.trial(f"key{number}").glob("ckpt-*.json")]
        return max((int(name[5:]) for name in names), default=0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def machine(tmp_path: Path, name: str, store: MemoryStore) -> Machine:
    return Machine(tmp_path / name, store)


def test_what_one_machine_began_another_one_goes_on_with(tmp_path: Path, store: MemoryStore) -> None:
    first, second = machine(tmp_path, "a", store), machine(tmp_path, "b", store)
    first.trains(epochs=3, is_killed=True)
    second.trains(epochs=1, going_on=("key0", "key2"))
    assert "fetched s/ from memory://bucket" in second.said[0]
    assert "looking for" in second.said[1], "the first one could still be alive"
    journal = second.directory.journal.read_bytes()
    assert journal.startswith(first.directory.journal.read_bytes())
    assert [second.epochs(number) for number in range(3)] == [4, 1, 4], "trial 1 has ended for the plan: nothing was fetched"


def test_there_and_back_again(tmp_path: Path, store: MemoryStore) -> None:
    keys = ("key0", "key1", "key2")
    first, second = machine(tmp_path, "a", store), machine(tmp_path, "b", store)
    first.trains(epochs=2)
    second.trains(epochs=2, going_on=keys)
    (first.local / "s" / "trials" / "key0" / "best.pt").write_bytes(b"of two epochs ago")
    first.trains(epochs=1, going_on=keys)
    assert first.directory.journal.read_bytes().startswith(second.directory.journal.read_bytes())
    assert {path.read_bytes() for path in first.directory.path.glob("trials/*/best.pt")} == {b"best of 5"}
    assert [first.epochs(number) for number in range(3)] == [LAST_EPOCH] * 3
    second.start().fetch("s")
    assert second.directory.journal.read_bytes() == first.directory.journal.read_bytes()


def test_the_same_machine_again_fetches_nothing_and_waits_for_nobody(tmp_path: Path, store: MemoryStore) -> None:
    first = machine(tmp_path, "a", store)
    first.trains(epochs=2, is_killed=True)
    store.reads.clear()
    first.trains(epochs=1, going_on=("key0",))
    assert first.said == []
    assert {name.rpartition("/")[2] for name in store.reads} == {"lease.json"}


def test_lines_that_were_never_sent_are_moved_aside_when_the_sweep_went_on_elsewhere(tmp_path: Path, store: MemoryStore) -> None:
    first, second = machine(tmp_path, "a", store), machine(tmp_path, "b", store)
    first.trains(epochs=1)
    sent = first.directory.journal.read_bytes()
    growing = Growing(first.directory, SWEEP)  # the network is gone, and then the machine
    growing.journal.close()
    second.trains(epochs=1, going_on=("key0", "key1", "key2"))
    first.start().fetch("s")
    assert "moved to s.aside-1/" in first.said[0]
    assert first.directory.journal.read_bytes() == second.directory.journal.read_bytes()
    assert (first.local / "s.aside-1" / "journal.jsonl").read_bytes().startswith(sent)
    assert not (first.directory.path / "trials").exists(), "checkpoints of rows that the journal does not have must not be used"


def test_two_sweeps_of_one_name_are_not_mixed(tmp_path: Path, store: MemoryStore) -> None:
    machine(tmp_path, "a", store).trains(epochs=1)
    other = machine(tmp_path, "b", store)
    Growing(SweepDirectory.create(other.local, "s"), SWEEP, range(5)).journal.close()
    before = other.directory.journal.read_bytes()
    with pytest.raises(StoreError, match="are two sweeps of one name; set `working_directory`"):
        other.place.fetch("s")
    assert other.directory.journal.read_bytes() == before


def test_a_new_start_beside_knows_the_numbers_that_are_taken_there(tmp_path: Path, store: MemoryStore) -> None:
    machine(tmp_path, "a", store).trains(epochs=1)
    other = machine(tmp_path, "b", store)
    other.place.fetch("s")
    assert SweepDirectory.create(other.local, "s").path.name == "s-2"


def test_a_directory_that_was_deleted_hides_none_after_it(tmp_path: Path, store: MemoryStore) -> None:
    here = machine(tmp_path, "a", store)
    here.local.mkdir()
    second = SweepDirectory(here.local / "s-2")  # and there is no s/ any more, here or there
    second.path.mkdir()
    for is_first in (True, False):
        here.start().fetch("s")
        with second.locked(), here.place.kept(second):
            if is_first:
                Growing(second, {**SWEEP, "name": "s"}).journal.close()
    assert any(name.startswith("s-2/journal/") for name in store.objects)


def test_a_sweep_that_was_here_only_is_sent_as_a_whole(tmp_path: Path, store: MemoryStore) -> None:
    only = machine(tmp_path, "a", store)
    growing = Growing(SweepDirectory.create(only.local, "s"), SWEEP)
    growing.epoch(0, checkpoint_first=True)
    growing.journal.close()
    only.place.fetch("s")
    only.place.settle(only.directory)
    (only.directory.path / "report.html").write_text("<p>")
    only.place.send_report(only.directory)
    assert only.said[-1] == "kept at memory://bucket/s"
    assert {"s/trials/key0/best.pt", "s/trials/key0/ckpt-000000001.json", "s/report.html"} <= store.objects.keys()
    other = machine(tmp_path, "b", store)
    other.place.fetch("s")
    assert other.directory.journal.read_bytes() == only.directory.journal.read_bytes()


def test_a_place_in_use_is_refused_and_the_new_directory_taken_away(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machine(tmp_path, "a", store), machine(tmp_path, "b", store)
    first.place.fetch("s")
    second.place.fetch("s")
    directory = SweepDirectory.create(first.local, "s")
    monkeypatch.setattr("raysweep.store.mirror.RENEWED_EVERY_S", 0.01)
    monkeypatch.setattr("raysweep.store.lease.STALE_AFTER_S", 30.0)  # however slow the machine: the first change is enough
    with directory.locked(), first.place.kept(directory, is_new=True):
        other = SweepDirectory.create(second.local, "s")
        refused = second.place.kept(other, is_new=True)
        with other.locked(), pytest.raises(StoreError, match=r"memory://bucket/s is in use by process"):
            refused.__enter__()
        assert not other.path.exists(), "or the next start would begin beside it"


def test_somebody_who_went_on_between_fetching_and_the_lease_is_seen(tmp_path: Path, store: MemoryStore) -> None:
    first, second = machine(tmp_path, "a", store), machine(tmp_path, "b", store)
    first.trains(epochs=1)
    second.place.fetch("s")
    first.trains(epochs=1)
    with pytest.raises(StoreError, match="another process has gone on with memory://bucket/s"):
        second.place.settle(second.directory)
    assert "s/lease.json" not in store.objects, "the lease is let go again"


def test_a_place_that_is_away_at_the_end_is_told_and_the_error_of_a_sweep_is_its_own(tmp_path: Path, store: MemoryStore) -> None:
    first = machine(tmp_path, "a", store)
    first.place.fetch("s")
    directory = SweepDirectory.create(first.local, "s")

    def sweep_that_fails() -> None:
        with directory.locked(), first.place.kept(directory):
            store.is_reachable = False  # first, or all may be sent before
            Growing(directory, SWEEP).journal.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sweep_that_fails()
    assert first.place.unsent == "no route to host"
    assert "warning: memory://bucket/s does not have the last state of the sweep: no route to host" in first.said[-1]
    store.is_reachable = True
    first.start().fetch("s")
    first.place.settle(directory)
    assert first.place.unsent == ""
    assert any(name.startswith("s/journal/") for name in store.objects)


def test_a_full_disk_forgets_what_was_sent_and_ends_nothing(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Machine(tmp_path, store)
    here.trains(epochs=1)
    (here.directory.path / "report.html").write_bytes(b"report")

    def full(*_given: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    here.place.send_report(here.directory)
    assert here.said[-1] == "kept at memory://bucket/s"
    assert "s/report.html" in store.list()


def test_a_place_that_cannot_be_written_is_refused_before_anything_else(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    place = machine(tmp_path, "a", store).place
    place.check()
    assert store.objects == {}
    store.is_reachable = False
    with pytest.raises(StoreError, match="storage memory://bucket cannot be written: no route to host"):
        place.check()


def test_a_working_directory_that_cannot_be_written_is_refused_by_its_own_name(tmp_path: Path, store: MemoryStore) -> None:
    place = machine(tmp_path, "a", store).place
    place.local.parent.mkdir(parents=True, exist_ok=True)
    place.local.write_text("a file")
    with pytest.raises(StoreError, match=r"^working_directory .* is a file; set `working_directory` to a directory$"):
        place.check()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("weird://bucket/x", "cannot be opened: Unrecognized filesystem type"),
        ("s3://key:secret@bucket/x", "leave keys and passwords out of the URI"),
        ("file:///", "names no bucket or folder"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused(uri: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_place(uri, "results")
    assert "secret" not in str(caught.value)


def test_a_directory_stays_a_directory(tmp_path: Path) -> None:
    place = open_place(tmp_path, "elsewhere")
    assert type(place) is Place
    assert place.local == tmp_path
    place.fetch("s")
    directory = SweepDirectory.create(tmp_path, "s")
    with place.kept(directory, is_new=True):
        pass
    place.settle(directory)
    place.send_report(directory)
    assert list(directory.path.iterdir()) == []


@pytest.mark.parametrize("mistyped", ["s3//bucket/runs", "s3:/bucket/runs", "file:/tmp/runs"])
def test_a_mistyped_uri_is_no_directory(mistyped: str) -> None:
    with pytest.raises(StoreError, match=r"neither a directory nor a URI; set `storage` to (s3://bucket|file:///tmp)/runs,"):
        open_place(mistyped, "results")
    assert type(open_place(f"./{mistyped}", "results")) is Place

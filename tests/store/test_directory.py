"""The sweep's directory: nothing is written over, a file is whole or not there, and the whole can be moved."""

from __future__ import annotations

import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.errors import DiskError, StoreError
from raysweep.store.directory import JOURNAL, MANIFEST, SweepDirectory, check_storage, write_atomically
from raysweep.train import checkpoint


def test_create_never_writes_over(tmp_path: Path) -> None:
    (tmp_path / "s-3").write_text("a file in the way")
    made = []
    for _ in range(3):
        directory = SweepDirectory.create(tmp_path, "s")
        (directory.path / "mine").write_text(directory.path.name)
        made.append(directory)
    assert [d.path.name for d in made] == ["s", "s-2", "s-4"]
    assert [(d.path / "mine").read_text() for d in made] == ["s", "s-2", "s-4"]
    assert (tmp_path / "s-3").read_text() == "a file in the way"


def test_create_makes_the_storage_and_gives_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = SweepDirectory.create(Path("new/storage"), "s")
    assert directory.path == tmp_path.resolve() / "new" / "storage" / "s"
    assert directory.journal == directory.path / "journal.jsonl"
    assert directory.trial("abc") == directory.path / "trials" / "abc"


def test_storage_that_is_a_file_is_refused_with_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for place in (file, file / "below"):
        with pytest.raises(StoreError, match="--storage"):
            check_storage(place)
        with pytest.raises(StoreError, match="--storage"):
            SweepDirectory.create(place, "s")
    assert file.read_text() == "x"


def test_checking_storage_writes_nothing(tmp_path: Path) -> None:
    check_storage(tmp_path / "a" / "b")
    check_storage(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "why"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "Read-only file system")])
def test_storage_that_takes_nothing_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    def refuse(**_given: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "tmpx1"))

    monkeypatch.setattr("raysweep.store.directory.tempfile.TemporaryFile", refuse)
    with pytest.raises(StoreError, match=rf"cannot write {tmp_path}: {why}.*--storage"):
        check_storage(tmp_path / "a")


def test_storage_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.store.directory.os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(StoreError, match=r"no permission in .*--storage"):
        check_storage(tmp_path / "a")


def test_storage_below_a_closed_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    real = os.stat

    def stat(path: str | Path, *args: object, **kwargs: object) -> os.stat_result:  # what the system answers a user but root
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    closed.mkdir()
    monkeypatch.setattr("os.stat", stat)
    monkeypatch.setattr("raysweep.store.directory.os.access", lambda *_: False)
    with pytest.raises(StoreError, match="no permission"):
        check_storage(closed / "a" / "b")


def test_write_atomically_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_can_be_read_by_others_as_any_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "file").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("step", ["os.fsync", "os.replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(step, full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new, and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_manifest_comes_back(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    assert directory.read_manifest() == {}
    directory.write_manifest({"python": "3.11", "gpus": 2})
    assert directory.read_manifest() == {"python": "3.11", "gpus": 2}


def test_a_manifest_that_cannot_be_read_or_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(StoreError, match=r"cannot read .*manifest\.json"):
        SweepDirectory(tmp_path).read_manifest()
    with pytest.raises(StoreError, match=r"cannot write .*manifest\.json"):
        SweepDirectory(tmp_path / "gone").write_manifest({})


def killed_in(write: Callable[[], object]) -> None:
    """Write a file in a process that is killed before the file has its name."""
    child = os.fork()
    if not child:
        os.fsync = lambda _descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write()
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_what_a_killed_process_was_writing_goes_with_the_next_lock_and_nothing_else_does(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    kept = [JOURNAL, MANIFEST, "report.html", ".sent", ".notes.markdown", ".env.development", ".ckpt-1.pt"]
    for name in kept:
        (tmp_path / name).touch()
    with directory.locked():
        killed_in(lambda: write_atomically(tmp_path / MANIFEST, b"{}"))
        killed_in(lambda: checkpoint._write(tmp_path / "ckpt-00000012.pt", lambda file: file.write(b"weights")))
        (tmp_path / ".ray" / "tune-1").mkdir(parents=True)
        assert len(list(tmp_path.iterdir())) == len(kept) + 4
        for use in (SweepDirectory(tmp_path).locked().__enter__, SweepDirectory(tmp_path).check_free):
            with pytest.raises(StoreError, match="is in use"):
                use()
        assert len(list(tmp_path.iterdir())) == len(kept) + 4, "who does not have the lock deletes nothing"
    SweepDirectory(tmp_path).check_free()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, ".lock"])


def test_a_lock_on_a_disk_that_breaks_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.FileIO):
        def truncate(self, _size: int | None = None) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", lambda path, _mode: io.TextIOWrapper(io.BufferedRandom(Broken(path, "a+"))))
    with pytest.raises(DiskError, match="theirs"), SweepDirectory.create(tmp_path, "s").locked():
        raise DiskError("theirs")

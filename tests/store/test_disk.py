"""Which errors are the disk's, whoever has wrapped them, and what they say."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.errors import CheckpointError, DiskError, StoreError
from raysweep.store.disk import disk_error


def failure(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([str(path)] if path else []))


def raised(function: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def wrapped(inner: BaseException, outer: BaseException, how: str) -> BaseException:
    def explicit() -> None:
        raise outer from inner

    def implicit() -> None:
        try:
            raise inner
        except BaseException:
            raise outer  # noqa: B904

    def hidden() -> None:
        try:
            raise inner
        except BaseException:
            raise outer from None

    return raised({"explicit": explicit, "implicit": implicit, "hidden": hidden}[how])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, r"the disk is full \([\d.]+ \w+ of the disk are free\); free some room"),
        (errno.EDQUOT, r"the disk quota is used up \(.* are free\); delete something"),
        (errno.EROFS, "Read-only file system; make it writable"),
        (errno.EIO, "Input/output error; look after the disk"),
    ],
)
def test_failures_of_the_disk_say_what_where_and_what_to_do(tmp_path: Path, number: int, text: str) -> None:
    found = disk_error(failure(number), tmp_path / "not" / "there")
    assert isinstance(found, StoreError)
    with pytest.raises(DiskError, match=rf"^cannot (read or )?write {tmp_path}/not/there: {text}"):
        raise pickle.loads(pickle.dumps(found))


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EFBIG, errno.ENAMETOOLONG])
def test_other_errors_are_the_trials_own(tmp_path: Path, number: int) -> None:
    assert disk_error(failure(number), tmp_path) is None
    assert disk_error(ValueError("No space left on device"), tmp_path) is None


def test_an_error_is_known_through_whatever_wraps_it(tmp_path: Path) -> None:
    full = failure(errno.ENOSPC)
    assert disk_error(wrapped(full, RuntimeError("unexpected pos 4"), "explicit"), tmp_path)
    assert disk_error(wrapped(full, RuntimeError("unexpected pos 4"), "implicit"), tmp_path)
    assert disk_error(wrapped(full, RuntimeError("something else"), "hidden"), tmp_path) is None

    class TaskError(Exception):  # as Ray brings errors from another process
        cause = full

    assert disk_error(TaskError(), tmp_path)
    own = DiskError("cannot write x")
    assert disk_error(wrapped(own, ValueError("outer"), "implicit"), tmp_path) is own
    assert disk_error(wrapped(full, CheckpointError("damaged"), "explicit"), tmp_path) is None, "it says what it is"
    loop = ValueError("its own cause")
    loop.__cause__ = loop
    assert disk_error(loop, tmp_path) is None


def test_the_file_that_the_error_names_is_told_but_no_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    assert f"write {tmp_path}/other:" in str(disk_error(failure(errno.EROFS, tmp_path / "other"), path))
    assert f"write {path}:" in str(disk_error(failure(errno.EROFS, tmp_path / ".best.pt.x1"), path))


def test_code_of_the_users_is_named_where_the_error_names_no_file(tmp_path: Path) -> None:
    def cache() -> None:
        with Path("/dev/full").open("w") as file:  # the sweep's own disk has room
            file.write("theirs")

    error = raised(cache)
    assert re.match(
        r"test_disk.py, line \d+, cannot write a file: the disk is full; free some room$", str(disk_error(error, tmp_path))
    )
    assert f"cannot write {tmp_path}/own:" in str(disk_error(error, tmp_path / "own")), "who knows the file names it"
    assert f"cannot write {tmp_path}:" in str(disk_error(failure(errno.ENOSPC), tmp_path)), "raised in another process"

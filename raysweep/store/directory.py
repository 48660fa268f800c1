"""Where a sweep's files lie: the names and places, all relative to one directory that can be moved as a whole.

What the files hold is written by journal.py (journal), train/checkpoint.py (checkpoints) and report/.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import DiskError, StoreError
from raysweep.store.disk import disk_error

JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"
COPIED = "clone"
SCRATCH = ".ray"
"""What Ray writes for the time of a sweep or a run, and drivers for their trials."""

_HALF_WRITTEN = re.compile(r"\..+\.\w+\.[a-z0-9_]{8}")
_LEAST_BYTES = 1 << 18  # that a sweep may start with: more than its first lines


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename.

    Raises:
        OSError: as the file system says; the old content stays.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner only; results are meant to be shared like any other file.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_leftovers(directory: Path) -> None:
    """Delete what a killed process has left in a directory: SCRATCH, and files that it was writing (a checkpoint may be large).

    For who holds the sweep's lock, before anything of its own runs. What cannot be deleted stays.
    """
    shutil.rmtree(directory / SCRATCH, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if _HALF_WRITTEN.fullmatch(path.name):
                path.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def copied(trial: Path, generation: int) -> Path:
    """The folder with the checkpoint that a population's member copies after a generation, in its trial's directory."""
    return trial / f"{COPIED}-{generation}"


def check_storage(storage: Path, setting: str = "storage") -> None:
    """Refuse a storage directory that cannot be written, or is full, without leaving anything.

    Args:
        storage: the directory.
        setting: what names it, `storage` or `working_directory`.

    Raises:
        StoreError: with the first existing parent and what is wrong with it.
    """
    place, change = storage, "`storage` (--storage)" if setting == "storage" else f"`{setting}`"
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        is_directory = place.is_dir()
    except PermissionError:
        raise StoreError(
            f"{setting} {storage} cannot be made: no permission to look into {place.parent}; set {change} elsewhere"
        ) from None
    if not is_directory:
        raise StoreError(f"{setting} {storage} cannot be made: {place} is a file; set {change} to a directory")
    if not os.access(place, os.W_OK | os.X_OK) and not os.statvfs(place).f_flag & os.ST_RDONLY:
        raise StoreError(f"{setting} {storage} cannot be written: no permission in {place}; set {change} elsewhere")
    try:
        with tempfile.TemporaryFile(dir=place) as file:  # which has no name where the system can do without
            file.write(bytes(_LEAST_BYTES))
            file.flush()
    except OSError as error:
        why = disk_error(OSError(error.errno, error.strerror), place) or f"{place}: {error.strerror or error}"
        raise StoreError(f"{setting} {storage}: {why}; or set {change} elsewhere") from None


@dataclass(frozen=True)
class SweepDirectory:
    """The directory of one sweep (or of one run, which is a sweep of one trial)."""

    path: Path

    @classmethod
    def create(cls, storage: Path, name: str) -> SweepDirectory:
        """Make `storage/name`, or `name-2`, `name-3`, ... where that exists: nothing is ever written over.

        The new directory has a higher number than a sweep's others, or than the runs of that name, whichever were deleted.

        Raises:
            StoreError: the directory cannot be made.
        """
        try:
            storage.mkdir(parents=True, exist_ok=True)
            number = 1 + max((_number(own.path, name) for own in _counted(storage, name)), default=0)
            while True:
                path = storage / (name if number == 1 else f"{name}-{number}")
                try:
                    path.mkdir()
                    return cls(path.resolve())
                except FileExistsError:
                    number += 1
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"cannot make a directory in {storage}: {why}; set `storage` (--storage) elsewhere") from None

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def trial(self, key: str) -> Path:
        """The directory of one trial: its checkpoints, sample images and TensorBoard files."""
        return self.path / "trials" / key

    @contextmanager
    def locked(self, otherwise: str = "start beside it with --fresh") -> Iterator[None]:
        """For the time of a block nobody else works in this directory; a process that dies lets it go.

        What such a process has left is deleted; in its trials' directories by those that go on with them.

        Args:
            otherwise: what else the user can do, for the message.

        Raises:
            StoreError: another process works in it, or it cannot be written.
        """
        path = self.path / ".lock"
        try:
            opened = path.open("a+")
        except OSError as error:
            raise disk_error(error, path) or StoreError(f"cannot write {path}: {error.strerror or error}") from None
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read().strip() or "another process"
                raise StoreError(f"{self.path} is in use by {who}; wait until it has ended, or {otherwise}") from None
            with contextlib.suppress(OSError):  # on a full disk the lock holds without saying whose it is
                file.truncate(0)
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
            remove_leftovers(self.path)
            try:
                yield
            finally:
                # The file stays: who has it open while it is deleted would lock another one than the next.
                with contextlib.suppress(OSError):  # of a broken disk the block's own error tells
                    file.truncate(0)

    def check_free(self, otherwise: str = "start beside it with --fresh") -> None:
        """Refuse a directory in which another process works, before Ray is looked for: it would be that process's Ray.

        Raises:
            StoreError: as locked().
        """
        with contextlib.suppress(DiskError), self.locked(otherwise):  # what cannot be written is told where it is needed
            pass

    def check_unchanged(self, size: int) -> None:
        """Refuse to go on by what was read, if somebody has written since; called when the directory is locked.

        Args:
            size: of the journal when it was read, bytes.

        Raises:
            StoreError: the journal has grown.
        """
        if self.journal.stat().st_size != size:
            raise StoreError(f"another process has gone on with {self.path} in the meantime; start the command again")

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write what the sweep ran on: versions, machine, command line.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            write_atomically(self.path / MANIFEST, json.dumps(content, indent=2).encode() + b"\n")
        except OSError as error:
            path = self.path / MANIFEST
            raise disk_error(error, path) or StoreError(f"cannot write {path}: {error.strerror or error}") from None

    def read_manifest(self) -> dict[str, Any]:
        """What write_manifest wrote; empty where there is none."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {self.path / MANIFEST}: {error}") from None
        return dict(manifest)


def directories_of(storage: Path, name: str) -> list[SweepDirectory]:
    """A sweep's directories in a storage, newest first: `name`, and those of `name-2`, ... that are not another sweep's.

    A sweep can itself be called `name-2`.
    """
    found = numbered_directories(storage, name)
    return [own for own in found if own.path.name == name or _sweep_name(own.journal) == name]


def numbered_directories(storage: Path, name: str) -> list[SweepDirectory]:
    """`storage/name`, `name-2`, ..., as far as they are there, newest first; whatever they hold."""
    found = [path for path in storage.glob(f"{glob.escape(name)}*") if path.is_dir() and _number(path, name)]
    return [SweepDirectory(path.resolve()) for path in sorted(found, key=lambda path: _number(path, name), reverse=True)]


def _counted(storage: Path, name: str) -> list[SweepDirectory]:
    """The directories that a new one of a name comes after: a run's journal does not have its name, so each run counts."""
    found = [own for own in numbered_directories(storage, name) if own.path.name == name or own.journal.exists()]
    return [own for own in found if own.path.name == name or _sweep_name(own.journal) in (name, None)]


def newest_number(storage: Path, name: str) -> int:
    """The number of a sweep's newest directory: 1 for `name`, 2 for `name-2`; 0 where there is none."""
    return max((_number(directory.path, name) for directory in directories_of(storage, name)), default=0)


def _number(path: Path, name: str) -> int:
    """Which directory of a sweep it is by its own name; 0: none."""
    match = re.fullmatch(rf"{re.escape(name)}(?:-([1-9][0-9]*))?", path.name)
    return 0 if match is None else int(match[1] or 1)


def _sweep_name(journal: Path) -> str | None:
    """The name of the sweep whose journal it is; None where it is no sweep's."""
    try:
        with journal.open("rb") as file:
            sweep = json.loads(file.readline()).get("sweep")
    except (OSError, ValueError, AttributeError):
        return None
    return str(sweep.get("name", "sweep")) if isinstance(sweep, dict) else None

"""Which files of a sweep's directory its place in a store has already: a file of lines beside them, so that a restart knows."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from raysweep.store.directory import JOURNAL

_FILE = ".sent"


def beside_the_journal(directory: Path) -> list[Path]:
    """The files of a sweep's directory that are sent as they are: manifest and report."""
    return sorted(p for p in directory.iterdir() if p.is_file() and not p.name.startswith(".") and p.name != JOURNAL)


def stamp(path: Path) -> str:
    """What changes when a file is written anew: its size in bytes and its modification time in ns."""
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


class Sent:
    """The files that were sent to, or fetched from, one place.

    Attributes:
        home: names this directory, and no other one, in the place's lease.

    Args:
        directory: the sweep's.
        uri: the place; what was sent to another one counts for nothing.
    """

    def __init__(self, directory: Path, uri: str) -> None:
        self._path = directory / _FILE
        self._stamps: dict[str, str] = {}
        try:
            head, *lines = self._path.read_text(encoding="utf-8").split("\n")[:-1]
        except (FileNotFoundError, ValueError):
            head, lines = "", []
        place, _, self.home = head.rpartition(" ")
        if not self.home:
            self.home = uuid.uuid4().hex
        if place == uri:
            for line in lines:
                *stamped, name = line.split(" ", 2)
                self._stamps[name] = " ".join(stamped)
        self._uri = uri
        self._rewrite()

    def _rewrite(self) -> None:
        lines = [f"{self._uri} {self.home}", *(f"{stamped} {name}" for name, stamped in self._stamps.items())]
        with suppress(OSError):  # of a full disk what follows tells
            self._path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def is_new(self, name: str, path: Path) -> bool:
        """Whether a file is not there as it is now."""
        try:
            return self._stamps.get(name) != stamp(path)
        except FileNotFoundError:
            return False

    def add(self, name: str, stamped: str) -> None:
        """A file is there as stamp() had it."""
        self._stamps[name] = stamped
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # on a full disk it is sent again after a restart
            file.write(f"{stamped} {name}\n")

    def drop(self, name: str) -> None:
        """A file is there no more."""
        self._stamps.pop(name, None)

    def keep_only(self, names: Collection[str]) -> None:
        """The place has these names and no others."""
        self._stamps = {name: stamped for name, stamped in self._stamps.items() if name in names}
        self._rewrite()

"""A store in memory that fails when it is told to, and a sweep's directory that grows as a running sweep's does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter

LAST_EPOCH = 5


class MemoryStore:
    """Objects in a dict. `before` is called before each change, and may raise."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Callable[[str, str], None] = lambda _what, _name: None
        self.reads: list[str] = []
        self.is_reachable = True

    def _check(self) -> None:
        if not self.is_reachable:
            raise OSError("no route to host")

    def put(self, name: str, content: bytes | Path) -> None:
        self._check()
        data = content if isinstance(content, bytes) else content.read_bytes()
        self.before("put", name)
        self.objects[name] = data

    def get(self, name: str) -> bytes:
        self._check()
        self.reads.append(name)
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def list(self, prefix: str = "") -> dict[str, int]:
        self._check()
        there = dict(self.objects)  # while another thread puts
        return {n: len(c) for n, c in there.items() if not prefix or n.startswith(f"{prefix}/")}

    def delete(self, name: str) -> None:
        self._check()
        self.before("delete", name)
        self.objects.pop(name, None)


class Growing:
    """A sweep's directory with trials that are trained by hand, an epoch at a time."""

    def __init__(self, directory: SweepDirectory, sweep: dict[str, Any] | None = None, numbers: range = range(3)) -> None:
        self.directory = directory
        is_new = not directory.journal.exists()
        self.journal = JournalWriter(directory.journal)
        self.epochs = dict.fromkeys(numbers, 0)
        self.journal.event("start", sweep=sweep or {}, experiment={}, data={})
        if is_new:
            for number in numbers:
                self.journal.event("trial", trial=number, key=f"key{number}", overrides={}, epochs=LAST_EPOCH, parameters=1)
                self.journal.event("run", trial=number)

    def checkpoint(self, number: int, epoch: int) -> None:
        """As train/saver.py does: best.pt, then the checkpoint, then its marker; the newest two stay."""
        folder = self.directory.trial(f"key{number}")
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "best.pt", b"best of " + str(epoch).encode())
        content = b"state after " + str(epoch).encode()
        _replace(folder / f"ckpt-{epoch:09d}.pt", content)
        _replace(folder / f"ckpt-{epoch:09d}.json", json.dumps({"size": len(content)}).encode())
        for ending in ("pt", "json"):
            (folder / f"ckpt-{epoch - 2:09d}.{ending}").unlink(missing_ok=True)

    def row(self, number: int, epoch: int) -> None:
        self.epochs[number] = epoch
        self.journal.row(number, {"epoch": epoch, "step": epoch, "val_loss": 1.0 / epoch + number})

    def epoch(self, number: int, checkpoint_first: bool) -> None:
        """One more epoch; the last one ends the trial."""
        epoch = self.epochs[number] + 1
        if epoch > LAST_EPOCH:
            return
        if checkpoint_first:
            self.checkpoint(number, epoch)
            self.row(number, epoch)
        else:
            self.row(number, epoch)
            self.checkpoint(number, epoch)
        if epoch == LAST_EPOCH:
            self.journal.event("end", trial=number, status="completed", reason={})


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)

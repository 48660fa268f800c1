"""Which trials run and which have just ended, read from the end of a growing journal."""

from __future__ import annotations

import json
from pathlib import Path

_LINGERS = 30


class Tail:
    """A journal that grows, read a piece at a time.

    Attributes:
        end: bytes that were read, all of them whole lines.
        running: keys of trials that run, or have ended a minute ago at most: one that a scheduler stops saves after that.
        just_ended: keys of trials whose end was among what was read last.
        copied: keys of trials that copied another one's weights in what was read last, and the newest generation of each.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._keys: dict[int, str] = {}
        self._left: dict[str, int] = {}  # rounds that an ended trial lingers
        self.end = 0
        self.running: set[str] = set()
        self.just_ended: set[str] = set()
        self.copied: dict[str, int] = {}

    def read(self) -> int:
        """Read what is new; the bytes that were read in all."""
        if not self._journal.exists():
            return self.end
        with self._journal.open("rb") as file:
            file.seek(self.end)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        for line in content.splitlines():
            if line.startswith(b'{"event":"'):
                self._event(json.loads(line))
        self.end += len(content)
        return self.end

    def _event(self, event: dict[str, object]) -> None:
        name, number = event["event"], event.get("trial")
        if not isinstance(number, int):
            return
        if name == "trial":
            self._keys[number] = str(event["key"])
        key = self._keys.get(number, "")
        if name == "run":
            self.running.add(key)
            self.just_ended.discard(key)
            self._left.pop(key, None)
        elif name == "end":
            self.just_ended.add(key)
            self._left[key] = _LINGERS
        elif name == "population":
            self.copied[key] = int(str(event["generation"]))

    def settled(self) -> None:
        """What has ended is sent: it is looked at for a while yet, and then no more."""
        self.running |= self.just_ended & self._left.keys()
        self.just_ended.clear()
        self.copied.clear()
        for key in list(self._left):
            self._left[key] -= 1
            if self._left[key] <= 0:
                del self._left[key]
                self.running.discard(key)

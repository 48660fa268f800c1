"""A journal as objects that are never changed, for stores that cannot append: each holds a run of the journal's bytes.

`journal/START-END-CRC.jsonl`: the bytes from START to END and their CRC-32. A part that grows is written anew under a longer
name before its shorter self is deleted, so that no moment leaves less than there was.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from raysweep.errors import StoreError
from raysweep.store.objects import ObjectStore

FOLDER = "journal"
PART_BYTES = 1 << 20
"""A part that has so many bytes grows no more."""
_NAME = re.compile(rf"(?:{FOLDER}/)?(\d{{12}})-(\d{{12}})-([0-9a-f]{{8}})\.jsonl")


@dataclass(frozen=True)
class Part:
    """The bytes of a journal from `start` to `end`, and their CRC-32."""

    start: int
    end: int
    crc32: int

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.start:012d}-{self.end:012d}-{self.crc32:08x}.jsonl"

    def holds(self, content: bytes) -> bool:
        """Whether `content` is this part's."""
        return len(content) == self.end - self.start and zlib.crc32(content) == self.crc32


def part(start: int, content: bytes) -> Part:
    """The part that `content` makes, from the byte `start` of its journal."""
    return Part(start, start + len(content), zlib.crc32(content))


def parse(name: str) -> Part | None:
    """The part that an object's name tells of."""
    match = _NAME.fullmatch(name)
    return Part(int(match[1]), int(match[2]), int(match[3], 16)) if match else None


def chain(names: Iterable[str]) -> list[Part]:
    """The parts that make the journal, in order: at each byte where one begins the longest.

    Raises:
        StoreError: one is missing between others.
    """
    longest: dict[int, Part] = {}
    for found in filter(None, map(parse, names)):
        if found.start not in longest or longest[found.start].end < found.end:
            longest[found.start] = found
    parts: list[Part] = []
    end = 0
    while end in longest:
        parts.append(longest[end])
        end = parts[-1].end
    beyond = [found.name for start, found in longest.items() if start > end]
    if beyond:
        raise StoreError(
            f"the journal in storage lacks its bytes from {end}: the object {FOLDER}/{end:012d}-... is gone. Bring it back, "
            f"or delete what follows it ({', '.join(sorted(beyond)[:3])}) to go on from what stands before"
        )
    return parts


def joined(store: ObjectStore, parts: Iterable[Part], have: bytes = b"") -> bytes:
    """The journal that the parts make.

    Args:
        store: where they lie.
        parts: as chain() gives them.
        have: a journal that may begin in the same way; what it shares is not read again.

    Raises:
        StoreError: a part is damaged.
        OSError: the store cannot be reached.
    """
    contents = []
    for each in parts:
        content = have[each.start : each.end]
        if not each.holds(content):
            content = store.get(each.name)
        if not each.holds(content):
            raise StoreError(f"the object {each.name} in storage is damaged: its CRC-32 is not the one in its name")
        contents.append(content)
    return b"".join(contents)

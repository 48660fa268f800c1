"""A journal as parts: what is missing, longer or damaged is seen, and what is here already is not read again."""

from __future__ import annotations

import itertools

import pytest
from helpers_mirror import MemoryStore
from hypothesis import given
from hypothesis import strategies as st

from raysweep.errors import StoreError
from raysweep.store.parts import Part, chain, joined, parse, part

CONTENT = b"".join(b'{"event":"x","n":%d}\n' % n for n in range(40))


def stored(*cuts: tuple[int, int]) -> MemoryStore:
    store = MemoryStore()
    for start, end in cuts:
        store.put(part(start, CONTENT[start:end]).name, CONTENT[start:end])
    return store


@given(st.sets(st.integers(1, len(CONTENT) - 1)), st.integers(0, len(CONTENT)))
def test_parts_make_the_journal_and_only_what_is_new_is_read(cuts: set[int], have: int) -> None:
    places = [0, *sorted(cuts), len(CONTENT)]
    store = stored(*itertools.pairwise(places))
    assert joined(store, chain(store.list()), CONTENT[:have]) == CONTENT
    assert all(p is not None and p.end > have for p in map(parse, store.reads))


def test_of_two_that_begin_at_one_byte_the_longer_counts() -> None:
    store = stored((0, 100), (100, 150), (100, 300), (150, 200))
    assert joined(store, chain(store.list())) == CONTENT[:300]
    assert chain(["lease.json", "trials/a/best.pt"]) == []


def test_a_part_that_is_gone_is_told() -> None:
    store = stored((0, 100), (200, 300), (300, 400))
    with pytest.raises(StoreError, match=r"lacks its bytes from 100: the object journal/000000000100-"):
        chain(store.list())


def test_a_damaged_part_is_told() -> None:
    store = stored((0, 100), (100, 200))
    name = chain(store.list())[1].name
    store.objects[name] = store.objects[name][:-1] + b"!"
    with pytest.raises(StoreError, match=f"{name} in storage is damaged"):
        joined(store, chain(store.list()))


def test_another_journal_of_the_same_length_is_not_taken_for_the_part() -> None:
    store = stored((0, 100))
    assert joined(store, chain(store.list()), b"x" * 100) == CONTENT[:100]
    assert parse(Part(0, 100, 0xAB).name) == Part(0, 100, 0xAB)

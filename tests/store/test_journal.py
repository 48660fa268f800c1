"""The journal: what was written stays readable, whatever killed the writer; every line is strict JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.errors import StoreError
from raysweep.store.journal import JournalWriter, plain, read_events

ROW = {
    "epoch": 1, "step": 20, "train_loss": 0.123456789123456, "val_loss": 0.1, "psnr": 20.123456789, "lr": 1e-3,
    "grad_norm": 0.123456789, "world_size": 1, "samples_per_second": 123.456789, "data_wait": 0.0123456,
    "seconds": 1.23456789, "peak_memory_bytes": 123456789.0,
}  # fmt: skip


def clock() -> float:
    return 1_700_000_000.1234


def open_writer(path: Path) -> closing[JournalWriter]:
    return closing(JournalWriter(path, clock=clock))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def written(path: Path, count: int = 3) -> list[dict[str, Any]]:
    with open_writer(path) as writer:
        for number in range(count):
            writer.event("trial", trial=number)
    return list(read_events(path))


def test_events_come_back_in_order_with_their_time(path: Path) -> None:
    events = written(path)
    assert events == [{"event": "trial", "time": 1_700_000_000.123, "trial": n} for n in range(3)]
    assert list(read_events(path, start=2)) == events[2:]


def test_a_row_comes_back_whole_and_decisive_values_exact(path: Path) -> None:
    with open_writer(path) as writer:
        writer.row(7, ROW)
    _, row = read_events(path)
    assert (row["event"], row["trial"]) == ("row", 7)
    assert {name: row[name] for name in ("train_loss", "val_loss", "lr", "epoch")} == {
        name: ROW[name] for name in ("train_loss", "val_loss", "lr", "epoch")
    }
    assert row["psnr"] == pytest.approx(ROW["psnr"], rel=1e-6)
    assert row["peak_memory_bytes"] == pytest.approx(ROW["peak_memory_bytes"], rel=1e-3)
    assert isinstance(row["epoch"], int)


def test_a_row_takes_at_most_200_bytes_and_what_is_for_people_is_rounded(path: Path) -> None:
    third = dict.fromkeys(("psnr", "grad_norm", "samples_per_second", "data_wait", "seconds", "peak_memory_bytes"), 1000 / 3)
    with open_writer(path) as writer:
        for row in (ROW, {**ROW, **third, "epoch": 123, "step": 20_000}):
            writer.row(123, row)
    names, *rows = path.read_bytes().splitlines(keepends=True)
    assert b'"columns"' in names
    assert len(rows) == 2
    assert max(len(row) for row in rows) <= 200
    assert all(len(repr(row[name])) <= 8 for row in list(read_events(path))[1:] for name in third if name != "peak_memory_bytes")


def test_columns_may_change_and_are_remembered_by_a_new_writer(path: Path) -> None:
    with open_writer(path) as writer:
        writer.row(0, {"epoch": 1, "a": 1})
        writer.row(0, {"epoch": 2, "a": 2})
        writer.row(1, {"epoch": 1, "b": 3})
    with open_writer(path) as writer:
        writer.row(1, {"epoch": 2, "b": 4})
        writer.row(0, {"a": 5, "epoch": 3})
    events = list(read_events(path))
    rows = [event for event in events if event["event"] == "row"]
    assert [(r["trial"], r["epoch"], r.get("a"), r.get("b")) for r in rows] == [
        (0, 1, 1, None), (0, 2, 2, None), (1, 1, None, 3), (1, 2, None, 4), (0, 3, 5, None),
    ]  # fmt: skip
    assert len(events) - len(rows) == 3
    assert next(iter(read_events(path, start=4)))["b"] == 3


def test_nothing_but_strict_json_is_written(path: Path) -> None:
    with open_writer(path) as writer:
        writer.event("end", values={"nan": math.nan, "list": [math.inf, -math.inf, np.float32("nan")], 3: 1.5})
        writer.row(0, {"epoch": np.int64(1), "loss": np.float32(0.5), "bad": np.float64("nan"), "text": "ä"})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines[0]["values"] == {"nan": None, "list": [None, None, None], "3": 1.5}
    assert lines[2]["row"][:5] == [0, 1, 0.5, None, "ä"]


class TorchLike:
    """What a zero-dimensional torch tensor offers."""

    def item(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int32(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.array(2.0), 2.0), (TorchLike(), 0.25), ("x", "x")],
)
def test_scalars_become_plain_python(value: Any, expected: Any) -> None:
    made = plain({"value": (value,)})["value"][0]
    assert made == expected
    assert type(made) is type(expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_any_value_makes_one_line(value: Any) -> None:
    line = json.dumps(plain(value), allow_nan=False)
    assert "\n" not in line
    assert json.loads(line) == plain(value)


# --- Damage -------------------------------------------------------------------------------------------------------


def test_a_line_torn_anywhere_is_left_out_and_then_cut(path: Path) -> None:
    events = written(path)
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for length in range(last, len(content)):
        path.write_bytes(content[:length])
        assert list(read_events(path)) == events[:2], f"torn at byte {length - last} of the last line"
        with open_writer(path) as writer:
            assert path.read_bytes() == content[:last]
            writer.event("trial", trial=2)
        assert path.read_bytes() == content


def test_damage_in_the_middle_names_the_line(path: Path) -> None:
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (b'{"event": "tri\n', b"\xff\x00\n", b"[1, 2]\n"):
        path.write_bytes(lines[0] + damage + lines[2])
        with pytest.raises(StoreError, match=r"journal\.jsonl is damaged at line 2"):
            list(read_events(path))
        with pytest.raises(StoreError, match="line 2"):
            JournalWriter(path)
        assert path.read_bytes() == lines[0] + damage + lines[2]


def test_a_row_that_does_not_fit_its_columns_is_damage_too(path: Path) -> None:
    path.write_text('{"event":"columns","columns":["epoch","time"]}\n{"row":[0,1]}\n{"row":[0,1,2]}\n')
    with pytest.raises(StoreError, match="line 2"):
        list(read_events(path))


def test_a_missing_journal_says_what_to_give(path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*No such file.*give a sweep's directory"):
        list(read_events(path))


def test_a_journal_that_cannot_be_opened_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        JournalWriter(tmp_path / "nowhere" / "journal.jsonl")


# --- A full disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount") or pytest.skip("there is no mount")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ["event", "row"])
def test_a_full_disk_keeps_the_journal_readable_and_appendable(small_disk: Path, kind: str) -> None:
    path = small_disk / "journal.jsonl"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    with open_writer(path) as writer:

        def write(number: int) -> None:
            if kind == "row":
                writer.row(number, {"epoch": 1, "note": "x" * 300})
            else:
                writer.event("trial", trial=number, note="x" * 300)

        def fill() -> int:
            for number in range(1000):
                try:
                    write(number)
                except StoreError:
                    return number
            raise AssertionError("the disk never filled up")

        done = fill()
        for _ in range(3):  # still full: the same answer, and nothing half-written
            with pytest.raises(StoreError, match=r"the disk is full \(.* of the disk are free\); free some room"):
                write(done)
            assert [e["trial"] for e in read_events(path) if "trial" in e] == list(range(done))
        ballast.unlink()
        write(done)
    assert [e["trial"] for e in read_events(path) if "trial" in e] == list(range(done + 1))


def test_a_write_that_ends_in_the_middle_leaves_no_half_line(path: Path) -> None:
    written(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_writer(path) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
        try:
            with pytest.raises(StoreError, match="File too large"):
                writer.event("trial", trial=3)
            assert path.read_bytes() == before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.event("trial", trial=3)
    assert [event["trial"] for event in read_events(path)] == [0, 1, 2, 3]


def test_behind_a_half_line_that_cannot_be_cut_nothing_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path)
    before = path.read_bytes()

    def read_only(*_given: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_writer(path) as writer, monkeypatch.context() as patch:
        patch.setattr("raysweep.store.journal.os.truncate", read_only)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
        try:
            with pytest.raises(StoreError):
                writer.event("trial", trial=3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(path.read_bytes()) == len(before) + 20
        with pytest.raises(StoreError, match="File too large"):
            writer.event("trial", trial=3)
    assert len(path.read_bytes()) == len(before) + 20, "an event glued to a half line would be damage"
    with open_writer(path) as writer:
        writer.event("trial", trial=3)
    assert [event["trial"] for event in read_events(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk quota is used up"), (errno.EIO, "Input/output error")],
)
def test_an_event_that_did_not_reach_the_disk_did_not_happen(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def broken(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with open_writer(path) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("raysweep.store.journal.os.fsync", broken)
            with pytest.raises(StoreError, match=message):
                writer.event("trial", trial=0)
        assert path.read_bytes() == b""
        writer.event("trial", trial=1)
    assert [event["trial"] for event in read_events(path)] == [1]


def test_a_directory_that_holds_sweeps_but_is_none_names_them(tmp_path: Path) -> None:
    def told() -> str:
        with pytest.raises(StoreError) as caught:
            list(read_events(tmp_path / "journal.jsonl"))
        return str(caught.value)

    assert told().endswith("give a sweep's directory, the one with journal.jsonl")
    for number in range(14, 0, -1):
        (tmp_path / f"s{number:02}").mkdir()
        (tmp_path / f"s{number:02}" / "journal.jsonl").touch()
    (tmp_path / "other").mkdir()
    assert told().endswith("; below this one are " + ", ".join(f"s{n:02}" for n in range(1, 13)) + " and 2 more")

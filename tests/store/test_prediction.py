"""A prediction goes from a file into the journal only for just what it was made for; what the sweep took is read there."""

from __future__ import annotations

import pathlib
from pathlib import Path

import pytest

from raysweep.errors import StoreError
from raysweep.store.prediction import WallTime, fingerprint, prediction_file, read_prediction, write_prediction

PREDICTED = {"wall_s": [90, 100, 120]}


def test_a_prediction_is_read_for_what_it_was_made_for(tmp_path: Path) -> None:
    write_prediction(tmp_path / "new", "s", "abc", PREDICTED)
    assert read_prediction(tmp_path / "new", "s", "abc") == PREDICTED
    assert read_prediction(tmp_path / "new", "s", "other") is None
    assert read_prediction(tmp_path / "new", "t", "abc") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["s.plan.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"for": "abc"}', '{"for": "abc", "predicted": 3}', "\xff"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: str) -> None:
    prediction_file(tmp_path, "s").write_bytes(content.encode("latin-1"))
    assert read_prediction(tmp_path, "s", "abc") is None


def test_what_cannot_be_written_is_said_and_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_prediction(tmp_path, "s", "abc", PREDICTED)

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(StoreError, match=r"cannot write .*s\.plan\.json: No space left.*--storage"):
        write_prediction(tmp_path, "s", "abc", {"wall_s": [1, 2, 3]})
    assert read_prediction(tmp_path, "s", "abc") == PREDICTED
    assert len(list(tmp_path.iterdir())) == 1


def test_the_fingerprint_is_that_of_the_content() -> None:
    assert fingerprint({"a": 1, "b": {"c": [1, 2]}}) == fingerprint({"b": {"c": [1, 2]}, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def seen(*events: tuple[str, dict[str, object]]) -> WallTime:
    wall = WallTime()
    for name, event in events:
        wall.see(name, event)
    return wall


def test_the_time_is_summed_over_starts_from_the_newest_prediction_on() -> None:
    first = ("start", {"time": 100.0, "predicted": PREDICTED})
    wall = seen(first, ("row", {"time": 130.0}), ("finish", {"time": 140.0}))
    assert (wall.predicted, wall.seconds) == (PREDICTED, 40)
    # Killed after its last row; what lies between two starts is nobody's.
    wall = seen(first, ("row", {"time": 130.0}), ("start", {"time": 500.0, "predicted": None}), ("finish", {"time": 520.0}))
    assert (wall.predicted, wall.seconds) == (PREDICTED, 50)
    other = {"wall_s": [1, 2, 3]}
    wall = seen(first, ("finish", {"time": 140.0}), ("start", {"time": 500.0, "predicted": other}), ("row", {"time": 501.0}))
    assert (wall.predicted, wall.seconds) == (other, 1)


def test_a_sweep_that_was_added_to_is_not_held_against_the_prediction_of_its_first_part() -> None:
    first = ("start", {"time": 100.0, "predicted": PREDICTED, "sweep": {"search": {"seeds": 1}, "storage": "here"}})
    broken_off = (first, ("finish", {"time": 140.0, "status": "interrupted"}))
    again = ("start", {"time": 500.0, "sweep": {"search": {"seeds": 1}, "storage": "there"}})
    assert seen(*broken_off, again).predicted == PREDICTED
    assert seen(*broken_off, ("start", {"time": 500.0, "sweep": {"search": {"seeds": 3}}})).predicted is None
    # Failed trials once more, or trials whose model's code has changed: the settings are the same.
    assert seen(first, ("finish", {"time": 140.0, "status": "completed"}), again).predicted is None


def test_an_old_journal_has_no_prediction_and_odd_times_do_no_harm() -> None:
    # A resize's time is when it happened, which may be before the row that told of it.
    wall = seen(
        ("start", {"time": 10.0}), ("row", {"time": 20.0}), ("resize", {"time": 15.0}), ("columns", {}), ("end", {"time": 21.0})
    )
    assert (wall.predicted, wall.seconds) == (None, 11)

"""What a sweep's exit code says of its trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysweep.store.directory import SweepDirectory
from raysweep.store.remote import Place
from raysweep.tune.engine import Finished


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["completed", "diverged", "failed"], 0),
        (["failed", "failed"], 1),
        (["failed", "infeasible"], 1),  # nothing was trained
        (["diverged", "infeasible"], 0),
    ],
)
def test_1_where_all_that_could_be_trained_failed(tmp_path: Path, statuses: list[str], code: int) -> None:
    place = Place(tmp_path)
    assert Finished(SweepDirectory(tmp_path), "completed", statuses, place).exit_code == code
    assert Finished(SweepDirectory(tmp_path), "interrupted", statuses, place).exit_code == 130
    place.unsent = "the store is gone"
    assert Finished(SweepDirectory(tmp_path), "completed", statuses, place).exit_code == 1

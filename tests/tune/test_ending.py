"""A stopped trial's workers are asked to end by the driver too: the trial's own process may have no chance to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from raysweep.train.mailbox import Mailbox
from raysweep.tune.ending import EndWorkers


def test_the_workers_of_the_trial_that_ended_are_asked(tmp_path: Path) -> None:
    boxes = {key: Mailbox(tmp_path / key, 1) for key in ("aaa", "bbb")}
    for box in boxes.values():
        box.open()
        box.let_in()
    EndWorkers(tmp_path).on_trial_complete(1, [], SimpleNamespace(config={"key": "aaa"}))
    assert [box.wishes().end for box in boxes.values()] == ["interrupted", ""]

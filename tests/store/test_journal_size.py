"""How large a journal gets, and that reading one does not hold it whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import raysweep
from raysweep.store.journal import JournalWriter, read_events


def test_a_row_of_a_real_run_takes_at_most_200_bytes(tmp_path: Path) -> None:
    settings = {"data": {"source": "digits", "count": 60}, "train": {"epochs": 3}, "model": {"depth": 1, "base_channels": 4}}
    run = raysweep.train(settings, storage=tmp_path, local=True)
    lines = (run.directory / "journal.jsonl").read_bytes().splitlines(keepends=True)
    rows = [line for line in lines if line.startswith(b'{"row"')]
    assert len(rows) == 3
    assert max(map(len, rows)) <= 200


def test_a_journal_is_read_and_opened_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    for number in range(20_000):
        writer.row(number, {"epoch": 1, "val_loss": 0.123456789, "text": "x" * 100})
    writer.close()
    tracemalloc.start()
    try:
        assert sum(event["event"] == "row" for event in read_events(path)) == 20_000
        JournalWriter(path).close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 2_500_000
    assert peak < 1_000_000

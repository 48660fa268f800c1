"""Rows as columns: the frame that mappings of rows would make, at a fraction of their memory; damage is still found by line."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from raysweep.errors import StoreError
from raysweep.store import rows as store_rows
from raysweep.store.journal import JournalWriter, read_events
from raysweep.store.results import load
from raysweep.store.rows import RowTable, by_trial

KINDS: dict[str, list[Any]] = {
    "val_loss": [0.5, 1e-300, 3, None],
    "step": [1, 2**50, None],
    "note": ["a", "1.5", "", None],
    "flag": [True, False],
    "mixed": [1, "b", 0.5, None],
    "own": [1.5, 2, None],
    "nothing": [None],
}


def frame_of(records: list[dict[str, Any]]) -> pd.DataFrame:
    """The same through a mapping for each row, as pandas reads them."""
    standing = {(record["trial"], record["epoch"]): record for record in records}
    ordered = [standing[place] for place in sorted(standing)]
    names = list(dict.fromkeys(name for record in ordered for name in record)) or ["trial", "epoch"]
    frame = pd.DataFrame.from_records(ordered, columns=names)
    whole = [name for name in names if name in ("trial", "epoch", "step")]
    texts = [name for name in names if name in ("note", "mixed") and any(isinstance(value, str) for value in frame[name])]
    others = [name for name in names if name not in (*whole, *texts)]
    return frame.astype({**dict.fromkeys(whole, "Int64"), **dict.fromkeys(others, "float64")})


@hypothesis_settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), block=st.integers(1, 9))
def test_columns_make_the_frame_that_mappings_make(seed: int, block: int) -> None:
    draw, table, records = random.Random(seed), RowTable(), list[dict[str, Any]]()
    layouts = [["epoch", *draw.sample(list(KINDS), draw.randint(0, len(KINDS)))] for _ in range(draw.randint(1, 3))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_rows, "_BLOCK", block)
        for _ in range(draw.randint(0, 60)):
            names, trial = draw.choice(layouts), draw.randint(0, 4)
            values = [draw.randint(1, 6) if name == "epoch" else draw.choice(KINDS[name]) for name in names]
            table.add(names, [trial, *values])
            records.append({"trial": trial, **dict(zip(names, values, strict=True))})
        found = table.frame()
    pd.testing.assert_frame_equal(found, frame_of(records), check_exact=True)
    for number, place in by_trial(found).items():
        assert set(found["trial"].iloc[place]) == {number}
    assert sum(place.stop - place.start for place in by_trial(found).values()) == len(found)


def test_a_row_without_an_epoch_makes_no_sense_each_time() -> None:
    table = RowTable()
    for _ in range(2):
        with pytest.raises(KeyError):
            table.add(["val_loss"], [0, 0.5])


def journal_of(path: Path, trials: int, epochs: int) -> None:
    """A sweep's rows as wide as real ones."""
    writer, rng = JournalWriter(path / "journal.jsonl"), np.random.default_rng(0)
    writer.event("start", experiment={}, data={}, planned=trials, at_once=1)
    names = ("train_loss", "val_loss", "psnr", "lr", "grad_norm", "samples_per_second", "data_wait", "seconds", "pause_s")
    for trial in range(trials):
        writer.event("trial", durable=False, trial=trial, key=str(trial), overrides={}, epochs=epochs, parameters=1)
        for epoch in range(1, epochs + 1):
            row = {
                "epoch": epoch,
                "step": epoch,
                **dict(zip(names, rng.random(len(names)).tolist(), strict=True)),
                "world_size": 1,
            }
            writer.row(trial, row)
    writer.close()


def test_results_take_at_most_400_bytes_a_row_while_they_are_read(tmp_path: Path) -> None:
    journal_of(tmp_path, 1, 1)
    load(tmp_path)  # what is made once
    (tmp_path / "journal.jsonl").unlink()
    journal_of(tmp_path, 40, 500)
    tracemalloc.start()
    try:
        assert len(load(tmp_path).rows) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / 20_000 < 400, "mappings of rows take 1,000"


@pytest.mark.parametrize(
    "damaged",
    ['{"event":"a"},{"event":"b"}', '{"event":"a"', '{"row":[0,1,2]}', '{"row":7}', "[1]", '{"event":"a"}{"event":"b"}'],
)
def test_damage_among_many_sound_lines_is_found_at_its_line(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "journal.jsonl"
    sound = ['{"event":"columns","columns":["epoch"]}', *(f'{{"row":[0,{epoch}]}}' for epoch in range(1, 400))]
    path.write_text("\n".join([*sound[:300], damaged, *sound[300:], ""]))
    events = read_events(path)
    assert [next(events).get("epoch") for _ in range(300)] == [None, *range(1, 300)]
    with pytest.raises(StoreError, match="damaged at line 301 "):
        next(events)

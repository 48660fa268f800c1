"""Settings that change while a trial trains, as columns: those of a population (scheduler pbt), which tune/population.py runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

Settings = Callable[[int | None], Mapping[str, Any]]
"""A trial's overrides in an epoch; None: the newest."""


def settings_columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, pd.Series[Any]]:
    """Columns of settings by their values: whole numbers as Int64, floats as numpy's float64, which every plot takes."""
    columns = {name: frame[name].infer_objects().convert_dtypes() for name in names}
    return {name: c.astype("float64") if str(c.dtype) == "Float64" else c for name, c in columns.items()}


def with_settings(rows: pd.DataFrame, settings: Mapping[int, Settings], params: Mapping[str, str]) -> pd.DataFrame:
    """A frame of rows with what each epoch was trained with.

    Args:
        rows: one row per trial and epoch.
        settings: of each trial, by number; empty: the rows stay as they are.
        params: the swept settings and their short names; the whole key where the rows have such a column.
    """
    if not settings:
        return rows
    names = {key: key if short in rows.columns else short for key, short in params.items()}
    per_row = [settings[int(trial)](int(epoch)) for trial, epoch in zip(rows["trial"], rows["epoch"], strict=True)]
    added = pd.DataFrame({name: [s.get(key) for s in per_row] for key, name in names.items()}, index=rows.index, dtype=object)
    return rows.assign(**settings_columns(added, names.values()))


def population_frame(
    copies: Sequence[Mapping[str, Any]], settings: Mapping[int, Settings], params: Mapping[str, str]
) -> pd.DataFrame:
    """One row per copy, in order: trial, generation, epoch, from, and for each setting `NAME` and `NAME_before`.

    Args:
        copies: the journal's population events.
        settings: of each trial, by number.
        params: the swept settings and their short names.
    """
    records = []
    for copy in copies:
        before = settings[copy["trial"]](copy["epoch"])
        record = {name: copy[name] for name in ("trial", "generation", "epoch", "from")}
        for key, short in params.items():
            record |= {short: copy["overrides"].get(key), f"{short}_before": before.get(key)}
        records.append(record)
    numbers = ["trial", "generation", "epoch", "from"]
    columns = [name for short in params.values() for name in (short, f"{short}_before")]
    frame = pd.DataFrame.from_records(records, columns=[*numbers, *columns])
    return frame.assign(**settings_columns(frame, columns)).astype(dict.fromkeys(numbers, "Int64"))

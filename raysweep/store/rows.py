"""A journal's rows as columns: 8 bytes a value, and not a mapping for each row. What rows mean is results.py's."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

_BLOCK = 1024
"""Rows that wait as lists before they are packed into columns."""
_NUMBERS = {int, float, type(None)}
_INTEGERS = ("trial", "epoch", "step", "world_size", "attempt")
_TEXTS = ("string", "mixed", "mixed-integer")


def _packed(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Numbers as float64, None as NaN; anything else as it is."""
    if set(map(type, values)) <= _NUMBERS:
        return np.array(values, dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class _Layout:
    """The rows that name the same columns in the same order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = ("trial", *names)
        self.waiting: list[list[Any]] = []
        self.places = array("q")
        self.columns: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in self.names}

    def pack(self) -> None:
        for name, values in zip(self.names, zip(*self.waiting, strict=True), strict=False):
            self.columns[name].append(_packed(values))
        self.waiting.clear()


class RowTable:
    """Collects rows in the journal's order; of an epoch told twice the later one stands."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._names: Sequence[str] = ()
        self._layout = _Layout(())
        self._num = 0

    def add(self, names: Sequence[str], row: list[Any]) -> None:
        """Take a row: the trial's number, then the values of the columns `names`.

        Raises:
            KeyError: it has no epoch.
        """
        if names is not self._names:  # the reader hands out the same list until the names change
            if "epoch" not in names:
                raise KeyError("epoch")
            self._names, self._layout = names, self._layouts.setdefault(tuple(names), _Layout(names))
        layout = self._layout
        layout.waiting.append(row)
        layout.places.append(self._num)
        self._num += 1
        if len(layout.waiting) == _BLOCK:
            layout.pack()

    def frame(self) -> pd.DataFrame:
        """One row per trial and epoch, by trial, then epoch; whole numbers as Int64. The table is empty after it."""
        layouts, self._layouts = list(self._layouts.values()), {}
        for layout in layouts:
            layout.pack()
        order = self._order(layouts)
        owner = np.empty(self._num, dtype=np.int32)
        for number, layout in enumerate(layouts):
            owner[layout.places] = number
        # Columns come in the order in which the rows, in theirs, name them.
        numbers, first = np.unique(owner[order], return_index=True)
        layouts = [layouts[number] for number in numbers[np.argsort(first)]]
        names = list(dict.fromkeys(name for layout in layouts for name in layout.names)) or ["trial", "epoch"]
        return pd.DataFrame({name: self._column(name, layouts, order) for name in names}, copy=False)

    def _order(self, layouts: list[_Layout]) -> np.ndarray[Any, Any]:
        """The places of the rows that stand, by trial, then epoch."""
        trials, epochs = (self._joined(name, layouts) for name in ("trial", "epoch"))
        order = np.lexsort((np.arange(self._num), epochs, trials))
        told_again = (np.diff(trials[order]) == 0) & (np.diff(epochs[order]) == 0)
        return order[~np.append(told_again, False)] if self._num else order

    def _joined(self, name: str, layouts: list[_Layout]) -> np.ndarray[Any, Any]:
        """A column of all rows in the journal's order; NaN where a row does not name it."""
        blocks = [(layout.places, np.concatenate(layout.columns[name])) for layout in layouts if layout.columns.get(name)]
        numeric = all(block.dtype == np.float64 for _, block in blocks)
        column = np.full(self._num, np.nan, dtype=np.float64 if numeric else object)
        for places, block in blocks:
            column[places] = block
        return column

    def _column(self, name: str, layouts: list[_Layout], order: np.ndarray[Any, Any]) -> pd.Series[Any]:
        joined = self._joined(name, layouts)[order]
        for layout in layouts:
            layout.columns.pop(name, None)
        if joined.dtype != np.float64:
            column = pd.DataFrame.from_records([(value,) for value in joined], columns=[name])[name]
            if pd.api.types.infer_dtype(column, skipna=True) in _TEXTS:
                return column
            joined = column.astype("float64").to_numpy()
        return pd.Series(joined, dtype="float64").astype("Int64") if name in _INTEGERS else pd.Series(joined)


def by_trial(rows: pd.DataFrame) -> dict[int, slice]:
    """Where each trial's rows stand in a frame that is sorted by trial."""
    numbers, first, counts = np.unique(rows["trial"].to_numpy(dtype=np.int64), return_index=True, return_counts=True)
    return {int(n): slice(int(at), int(at + count)) for n, at, count in zip(numbers, first, counts, strict=True)}


def needed_to_go_on(start: Mapping[str, Any], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Which values of a row a sweep that goes on keeps, and where they stand in it: four of some twenty, for memory counts.

    Schedulers need the epoch and the objective, budgets what the epoch took; a population (scheduler pbt) tells from all of a
    row why a member diverged.

    Args:
        start: the journal's newest start event.
        columns: names of the values that follow the trial's number.
    """
    sweep = start.get("sweep") or {}
    objective = sweep.get("objective", {}).get("metric", "val_loss")
    is_population = sweep.get("scheduler", {}).get("name") == "pbt"
    needed = columns if is_population else ("epoch", objective, "seconds", "world_size")
    return [(name, place) for place, name in enumerate(columns, start=1) if name in needed]

"""Where each trial stands on the map of two swept settings, and what is drawn there. Numbers only; drawing is heatmap.py."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from raysweep.report.answer import is_number
from raysweep.report.tables import baselines, missing
from raysweep.store.results import Results

LR, DEPTH = "optim.lr", "model.depth"
KINDS = ("value", "worse", "diverged", "failed", "infeasible", "missing")
"""What a cell can show, and which of its trials stands for it: the first of these.

`worse`: a value not better than the mean image. `missing`: the trial has not ended, or ended without a value.
With several seeds a configuration takes the place of a trial, and its mean that of the value; the ranking says which one stands.
"""

_MAX_SIDE = 40
_DECADES = 100.0


@dataclass(frozen=True)
class Axis:
    """One swept setting: its column, whether its values are numbers, whether ratios count, its values in order."""

    name: str
    numeric: bool
    log: bool
    values: tuple[Any, ...]

    def position(self, value: Any) -> float:
        """Where a value lies: a number at itself, any other value at its place in the list."""
        return float(value) if self.numeric else float(self.index(value))

    def index(self, value: Any) -> int:
        """The value's place in the list."""
        return [_identity(v) for v in self.values].index(_identity(value))


@dataclass(frozen=True)
class Cell:
    """One place of the map: the settings, the trial that stands for it, its objective, and how many trials lie here.

    With several seeds: the first trial of the configuration that stands for it, its mean, and how many configurations.
    """

    x: Any
    y: Any
    trial: int
    value: float | None
    kind: str
    num_trials: int


@dataclass(frozen=True)
class Map:
    """What the map shows; `y` is None where only one setting was swept. `best` is the trial of the best cell."""

    x: Axis
    y: Axis | None
    cells: tuple[Cell, ...]
    best: int | None
    others: tuple[str, ...]
    """Swept settings that are on no axis: a cell shows the best of their trials."""

    @property
    def is_grid(self) -> bool:
        """Whether the values form a grid: at least half of the combinations were planned."""
        if self.y is None:
            return False
        width, height = len(self.x.values), len(self.y.values)
        return max(width, height) <= _MAX_SIDE and len(self.cells) * 2 >= width * height


def _identity(value: Any) -> str:
    """A text that two values share when they are the same setting; lists cannot be compared by a set."""
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    return repr(float(value)) if is_number(value) else json.dumps(value, default=repr, sort_keys=True)


def axis(name: str, values: Sequence[Any], log: bool = False) -> Axis | None:
    """The axis of a setting's values; None where fewer than two differ.

    Args:
        name: the setting's column.
        values: of all trials, missing ones among them.
        log: whether the setting is one of ratios, whatever its span.
    """
    distinct = {_identity(v): v for v in values if not missing(v)}
    if len(distinct) < 2:
        return None
    if not all(is_number(v) for v in distinct.values()):
        return Axis(name, False, False, tuple(distinct.values()))
    ordered = sorted(distinct.values(), key=float)
    low, high = float(ordered[0]), float(ordered[-1])
    return Axis(name, True, low > 0 and (log or high / low >= _DECADES), tuple(ordered))


def swept_axes(results: Results) -> list[Axis]:
    """The settings whose values differ, the map's axes first: lr and depth, then numbers, then all others."""
    axes = []
    for key, short in results.params.items():
        domain = results.sweep.space[key] if results.sweep else None
        found = axis(short, results.trials[short].tolist(), log=key == LR or (domain is not None and domain.is_log))
        if found is not None:
            axes.append((key, found))
    both = {LR, DEPTH} <= {key for key, a in axes if a.numeric}
    rank = {LR: 0, DEPTH: 1} if both else {}
    return [a for _, a in sorted(axes, key=lambda pair: (rank.get(pair[0], 2), not pair[1].numeric))]


def sweep_map(results: Results) -> Map | None:
    """The map of the two leading swept settings; None where no setting differs among the trials.

    One number and other, non-numeric settings: the number alone, so that its curve is seen.
    """
    axes = swept_axes(results)
    if not axes:
        return None
    # A setting that only some trials have would leave the others out of the map.
    whole = [a for a in axes if not any(missing(value) for value in results.trials[a.name])]
    x, *rest = [*whole, *(a for a in axes if a not in whole)]
    y = rest[0] if rest and rest[0] in whole and rest[0].numeric == x.numeric else None
    shown = [a.name for a in (x, y) if a is not None]
    groups: dict[tuple[str, ...], list[_Point]] = {}
    points = _configurations(results) if results.has_seeds else _trials(results)
    for point in points:
        if not any(missing(point.settings[name]) for name in shown):
            # With one axis every trial is a point of its own.
            place = [_identity(point.settings[name]) for name in shown] if y else [str(point.trial)]
            groups.setdefault(tuple(place), []).append(point)
    cells = []
    for here in groups.values():
        chosen, at = min(here, key=lambda point: point.rank), here[0].settings
        cells.append(Cell(at[x.name], at[y.name] if y else None, chosen.trial, chosen.value, chosen.kind, len(here)))
    others = tuple(a.name for a in axes if a.name not in shown)
    best = results.best
    if best is not None and results.has_seeds:
        best = results.configurations.iloc[0]
    return Map(x, y, tuple(cells), None if best is None else int(best["trial"]), others)


@dataclass(frozen=True)
class _Point:
    """What may stand for a cell: a trial, or a configuration with several seeds; the lowest rank does."""

    settings: Mapping[str, Any]
    trial: int
    value: float | None
    kind: str
    rank: tuple[float, ...]


def _trials(results: Results) -> list[_Point]:
    sign, mean_image = 1 if results.mode == "min" else -1, baselines(results.data).get("mean image")
    points = []
    for trial in cast("list[Mapping[str, Any]]", results.trials.to_dict("records")):
        kind, number = _kind(trial, results.metric, mean_image), int(trial["trial"])
        value = float(trial[results.metric]) if kind in ("value", "worse") else None
        points.append(_Point(trial, number, value, kind, (KINDS.index(kind), sign * (value or 0.0), number)))
    return points


def _configurations(results: Results) -> list[_Point]:
    mean_image, trials = baselines(results.data).get("mean image"), results.trials.set_index("trial")
    points = []
    for place, row in enumerate(cast("list[Mapping[str, Any]]", results.configurations.to_dict("records"))):
        value = None if missing(row["mean"]) else float(row["mean"])
        if value is None:
            kinds = [_kind(dict(trials.loc[number]), results.metric, mean_image) for number in row["trials"]]
            kind = min(kinds, key=KINDS.index)
        else:
            kind = _worth(row["mean_val_loss"], mean_image)
        rank = (0 if value is not None else KINDS.index(kind), place)
        points.append(_Point(row, int(row["trial"]), value, kind, rank))
    return points


def _kind(trial: Mapping[str, Any], metric: str, mean_image: float | None) -> str:
    if trial["status"] in ("diverged", "failed", "infeasible"):
        return str(trial["status"])
    if missing(trial[metric]) or not math.isfinite(trial[metric]):
        return "missing"
    return _worth(trial["val_loss"], mean_image)


def _worth(loss: Any, mean_image: float | None) -> str:
    return "worse" if mean_image is not None and not missing(loss) and loss >= mean_image else "value"


def colour_range(values: Sequence[float], lower_is_better: bool) -> tuple[float, float, bool]:
    """Low and high end of a colour scale that one huge value does not flatten, and whether it is logarithmic.

    The bad end is cut where a value is more than three times as far beyond the median as the best is before it (in
    logarithms where all are positive). Quartiles would not do: a sweep may have four values, one of them huge.
    """
    log = lower_is_better and min(values) > 0
    scaled = np.log(values) if log else np.asarray(values, dtype=float)
    towards_bad = scaled if lower_is_better else -scaled
    good, middle = float(towards_bad.min()), float(np.median(towards_bad))
    bad = float(min(towards_bad.max(), middle + 3 * (middle - good)))
    if not bad > good:
        bad = float(towards_bad.max())
    if not bad > good:
        # One value only: a scale needs some width.
        good, bad = good - 0.1, bad + 0.1
    low, high = (good, bad) if lower_is_better else (-bad, -good)
    return (math.exp(low), math.exp(high), True) if log else (low, high, False)

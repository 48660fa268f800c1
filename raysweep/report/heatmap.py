"""The map of the sweep: two settings against the objective as a grid or as points, one setting as a curve.

Which trial stands where is cells.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from raysweep.report.cells import Axis, Cell, Map, colour_range, sweep_map
from raysweep.report.figures import BAD, BEST, FAINT, INK, SCALE, SOFT, baseline_lines, log_or_linear, plain_axes
from raysweep.report.tables import baselines, measured, number, shortened
from raysweep.store.results import Results

LINE = "#1f6aa5"
_MAX_NUMBERS = 60
_MAX_NUMBERED_COLUMNS = 12
_LOOKS: dict[str, dict[str, Any]] = {
    "worse": {"facecolor": "#f6dfb8", "edgecolor": "white"},
    "diverged": {"facecolor": "white", "edgecolor": "#d98ba0", "hatch": "xxx"},
    "failed": {"facecolor": "white", "edgecolor": "#9aa5b1", "hatch": "////"},
    "infeasible": {"facecolor": "white", "edgecolor": SOFT, "hatch": "...."},
    "missing": {"facecolor": FAINT, "edgecolor": "white"},
}
_MARKERS: dict[str, dict[str, Any]] = {
    "worse": {"marker": "D", "facecolors": "#f6dfb8", "edgecolors": "#a87b28", "s": 34},
    "diverged": {"marker": "x", "color": BAD, "s": 40},
    "failed": {"marker": "+", "color": INK, "s": 50},
    "infeasible": {"marker": "1", "color": SOFT, "s": 50},
    "missing": {"marker": "o", "facecolors": FAINT, "edgecolors": SOFT, "s": 28},
}
_WORDS = {"worse": "not better than the mean image", "missing": "no value"}


def map_figure(results: Results) -> Figure | None:
    """The map; None where no setting differs among the trials.

    Diverged, failed, infeasible and valueless trials are hatched or grey, never on the colour scale.
    """
    content = sweep_map(results)
    if content is None:
        return None
    if content.y is None:
        return _curve(results, content)
    norm = _norm(content, results)
    return _grid(results, content, content.y, norm) if content.is_grid else _points(results, content, content.y, norm)


def _norm(content: Map, results: Results) -> tuple[Any, bool] | None:
    """The colour scale and whether it is cut; None where no cell has a value to colour."""
    values = [c.value for c in content.cells if c.kind == "value" and c.value is not None]
    if not values:
        return None
    low, high, log = colour_range(values, results.mode == "min")
    worst, end = (max(values), high) if results.mode == "min" else (min(values), low)
    cut = not math.isclose(worst, end) and (worst > end) == (results.mode == "min")
    return (LogNorm(low, high, clip=True) if log else Normalize(low, high, clip=True)), cut


def _colours(results: Results) -> Any:
    return SCALE if results.mode == "min" else SCALE.reversed()


def _title(axes: Any, results: Results, content: Map) -> None:
    title = f"best {results.metric} of each trial"
    if results.has_seeds:
        title = f"{_shown(results)} of each configuration over its seeds"
    if content.y is not None and any(c.num_trials > 1 for c in content.cells):
        over = shortened(", ".join(content.others), 40) or "repeated trials"
        what = "configurations" if results.has_seeds else "trials"
        title = f"{_shown(results)}; each place shows the best of its {what} (over {over})"
    axes.set_title(title)


def _shown(results: Results) -> str:
    """What the values are."""
    return f"mean {results.metric}" if results.has_seeds else results.metric


def _grid(results: Results, content: Map, y_axis: Axis, norm: tuple[Any, bool] | None) -> Figure:
    width, height = len(content.x.values), len(y_axis.values)
    figure = Figure(figsize=(min(max(2.4 + 0.98 * width, 4.6), 12), min(1.9 + 0.62 * height, 10)), layout="constrained")
    axes: Any = figure.add_subplot()
    places = {(content.x.index(c.x), y_axis.index(c.y)): c for c in content.cells}
    numbers = len(places) <= _MAX_NUMBERS and width <= _MAX_NUMBERED_COLUMNS
    for (column, row), cell in places.items():
        _draw_cell(axes, column, row, cell, norm, _colours(results), numbers)
    for (column, row), cell in places.items():
        if cell.trial == content.best:
            _square(axes, column, row, fill=False, edgecolor="white", linewidth=5.5, zorder=5, clip_on=False)
            _square(axes, column, row, fill=False, edgecolor=BEST, linewidth=3, zorder=6, clip_on=False)
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(-0.5, height - 0.5)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    _value_ticks(axes.xaxis, content.x)
    _value_ticks(axes.yaxis, y_axis)
    _finish(figure, axes, results, content, norm, filled=True)
    return figure


def _draw_cell(axes: Any, column: int, row: int, cell: Cell, norm: tuple[Any, bool] | None, colours: Any, numbers: bool) -> None:
    look, ink = dict(_LOOKS.get(cell.kind, {})), INK
    if cell.kind == "value" and cell.value is not None and norm is not None:
        colour = colours(norm[0](cell.value))
        look = {"facecolor": colour, "edgecolor": "white"}
        luminance = float(np.dot(colour[:3], [0.2126, 0.7152, 0.0722]))
        ink = "white" if luminance < 0.55 else INK
    _square(axes, column, row, linewidth=0, **look)
    # The seam between cells is drawn apart: a hatch takes its colour from the edge.
    _square(axes, column, row, fill=False, edgecolor="white", linewidth=2)
    if not numbers:
        return
    text = measured(cell.value) if cell.value is not None else ("" if cell.kind == "missing" else cell.kind)
    back = {"facecolor": "white", "lw": 0, "pad": 2.0} if look.get("hatch") and text else None
    size = 10 if cell.value is not None else 9
    axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=size, bbox=back, zorder=7)


def _square(axes: Any, column: int, row: int, **style: Any) -> None:
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **style))


def _value_ticks(axis: Any, values: Axis) -> None:
    """A label under each cell; with many, one in so many."""
    every = -(-len(values.values) // 16)
    places = list(range(0, len(values.values), every))
    axis.set_ticks(places, [shortened(number(values.values[i], 4), 18) for i in places])


def _points(results: Results, content: Map, y_axis: Axis, norm: tuple[Any, bool] | None) -> Figure:
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes: Any = figure.add_subplot()
    plain_axes(axes)
    axes.grid(True, axis="x", color=FAINT, linewidth=0.6)
    _scaled(axes.xaxis, content.x)
    _scaled(axes.yaxis, y_axis)
    for kind, look in _MARKERS.items():
        cells = [c for c in content.cells if c.kind == kind]
        if cells:
            axes.scatter([content.x.position(c.x) for c in cells], [y_axis.position(c.y) for c in cells], zorder=3, **look)
    cells = [c for c in content.cells if c.kind == "value"]
    if cells and norm is not None:
        at = ([content.x.position(c.x) for c in cells], [y_axis.position(c.y) for c in cells])
        axes.scatter(
            *at, c=[c.value for c in cells], norm=norm[0], cmap=_colours(results), s=64, edgecolors=SOFT, linewidths=0.6, zorder=4
        )
    _ring(axes, ((content.x.position(c.x), y_axis.position(c.y)) for c in content.cells if c.trial == content.best))
    _finish(figure, axes, results, content, norm, filled=False)
    return figure


def _ring(axes: Any, places: Iterable[tuple[float, float]]) -> None:
    for x, y in places:
        axes.scatter([x], [y], s=190, facecolors="none", edgecolors=BEST, linewidths=2.4, zorder=6)


def _scaled(axis: Any, values: Axis) -> None:
    """The axis of a setting drawn at its values: numbers to scale, with some room, other values by place."""
    if not values.numeric:
        axis.set_ticks(range(len(values.values)), [shortened(number(v), 18) for v in values.values])
        return
    low, high = float(values.values[0]), float(values.values[-1])
    log_or_linear(axis, values.log, low, high)
    room = (high / low) ** 0.06 if values.log else (high - low) * 0.06
    limits = (low / room, high * room) if values.log else (low - room, high + room)
    getattr(axis.axes, f"set_{axis.axis_name}lim")(*limits)
    if len(values.values) <= 8 and _apart(values):
        axis.set_ticks([float(v) for v in values.values])
        axis.set_minor_locator(NullLocator())
    elif all(float(v).is_integer() for v in values.values) and not values.log:
        axis.set_major_locator(MaxNLocator(integer=True))


def _apart(values: Axis) -> bool:
    """Whether the labels of all values fit side by side."""
    places = np.log([float(v) for v in values.values]) if values.log else np.array([float(v) for v in values.values])
    return bool(np.diff(places).min() * 12 >= places[-1] - places[0])


def _finish(figure: Figure, axes: Any, results: Results, content: Map, norm: tuple[Any, bool] | None, filled: bool) -> None:
    """Labels, title, colour bar and legend; `filled`: the legend shows cells, else markers."""
    axes.set_xlabel(_label(content.x, filled), labelpad=6)
    axes.set_ylabel(_label(content.y, filled) if content.y is not None else _shown(results), labelpad=6)
    _title(axes, results, content)
    if norm is not None:
        scale, cut = norm
        extend = ("max" if results.mode == "min" else "min") if cut else "neither"
        bar = figure.colorbar(mpl.cm.ScalarMappable(scale, _colours(results)), ax=axes, extend=extend, pad=0.03, aspect=22)
        log_or_linear(bar.ax.yaxis, isinstance(scale, LogNorm), scale.vmin, scale.vmax)
        bar.outline.set_visible(False)
        bar.set_label(_shown(results))
        bar.ax.tick_params(length=3)
    handles = _legend(axes, content, filled)
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=2 if figure.get_figwidth() < 6 else 4, handlelength=1.4)


def _legend(axes: Any, content: Map, filled: bool) -> list[Any]:
    present = {cell.kind for cell in content.cells}
    kinds = [kind for kind in _LOOKS if kind in present and not (kind == "worse" and content.y is None)]
    has_best = any(cell.trial == content.best for cell in content.cells)
    if filled:
        ring = [Patch(label="best", fill=False, edgecolor=BEST, linewidth=2.4)] if has_best else []
        return ring + [Patch(label=_WORDS.get(kind, kind), linewidth=0.5, **_LOOKS[kind]) for kind in kinds]
    # Markers without a place: they are only in the legend.
    rings = [axes.scatter([], [], label="best", facecolors="none", edgecolors=BEST, s=80, linewidths=2)] if has_best else []
    return rings + [axes.scatter([], [], label=_WORDS.get(kind, kind), **_MARKERS[kind]) for kind in kinds]


def _label(values: Axis, filled: bool) -> str:
    is_log = values.log and (not filled or _even_ratios([float(v) for v in values.values]))
    return shortened(values.name, 60) + (" (log scale)" if is_log else "")


def _even_ratios(values: list[float]) -> bool:
    """Whether columns of one width show these values to a logarithmic scale, give or take a third."""
    steps = np.diff(np.log(values))
    return bool(steps.max() <= 1.34 * steps.min())


def _curve(results: Results, content: Map) -> Figure:
    """One swept setting: a point per trial, a line through the best at each value; the valueless stand on the upper edge.

    With several seeds a point is a configuration.
    """
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes: Any = figure.add_subplot()
    plain_axes(axes)
    _scaled(axes.xaxis, content.x)
    if not content.x.numeric:
        axes.set_xlim(-0.5, len(content.x.values) - 0.5)
    valued = [(content.x.position(c.x), c.value) for c in content.cells if c.value is not None]
    if valued:
        _curve_values(axes, results, valued, content.x.numeric)
    else:
        axes.set_yticks([])
    for kind in ("diverged", "failed", "infeasible", "missing"):
        x = [content.x.position(c.x) for c in content.cells if c.kind == kind]
        axes.scatter(x, [1.0] * len(x), **_MARKERS[kind], transform=axes.get_xaxis_transform(), clip_on=False, zorder=6)
    _ring(axes, ((content.x.position(c.x), c.value) for c in content.cells if c.trial == content.best and c.value is not None))
    _finish(figure, axes, results, content, None, filled=False)
    return figure


def _curve_values(axes: Any, results: Results, valued: list[tuple[float, float]], numeric: bool) -> None:
    lower_is_better = results.mode == "min"
    shown = {n: v for n, v in baselines(results.data).items() if v > 0} if results.metric == "val_loss" else {}
    low, high, log = colour_range([value for _, value in valued], lower_is_better)
    low, high = min([low, *shown.values()]), max([high, *shown.values()])
    room = (high / low) ** 0.08 if log else (high - low) * 0.08
    log_or_linear(axes.yaxis, log, low, high)
    axes.set_ylim(*((low / room, high * room) if log else (low - room, high + room)))
    if numeric:
        best: dict[float, float] = {}
        for place, value in sorted(valued, key=lambda point: point[1], reverse=lower_is_better):
            best[place] = value
        places = sorted(best)
        axes.plot(places, [best[place] for place in places], color=LINE, linewidth=1.8, zorder=3)
    axes.scatter(*zip(*valued, strict=True), color=LINE, s=30, zorder=4, edgecolors="white", linewidths=0.8)
    baseline_lines(axes, shown)

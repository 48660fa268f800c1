"""What all figures share (colours, type, PNG bytes) and the learning curves. The map is heatmap.py, the images strip.py.

Matplotlib's object interface only: nothing here touches pyplot's global state or a user's matplotlibrc.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from raysweep.report.cells import Axis, colour_range, swept_axes
from raysweep.report.tables import baselines, number, settings_text, shortened
from raysweep.store.results import Results

INK, SOFT, FAINT = "#1f2933", "#616e7c", "#d9dee4"
BEST, BAD = "#e8590c", "#b3123b"
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    # A setting's value may hold a dollar sign; it is no formula.
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.unicode_minus": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "hatch.linewidth": 0.8,
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.dpi": 170,
}
SCALE = LinearSegmentedColormap.from_list("raysweep", ["#0b3c68", "#1f6aa5", "#5b9fca", "#a3cbe3", "#dcebf5"])
"""Dark is good; light, but never white, is poor. One hue: readable in print and without colour vision."""

_MANY = 6
_MAX_LINES = 300


def drawn(draw: Callable[[], Figure | None]) -> bytes | None:
    """The PNG of the figure that `draw` returns (None: of none), the same bytes for the same figure."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the table beside the figure has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw()
        if figure is None:
            return None
        buffer = io.BytesIO()
        # The canvas itself: savefig would draw everything twice, once only to lay it out.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
        return buffer.getvalue()


def plain_axes(axes: Any) -> None:
    """Take the box away and leave a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def log_or_linear(axis: Any, log: bool, low: float, high: float) -> None:
    """Scale one axis; tick labels are plain numbers (0.001, not a power), as many as stay readable."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log" if log else "linear")
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(value), 6)))
    if log:
        # Under two decades the powers of ten alone would leave one label or none.
        subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
        axis.set_major_locator(LogLocator(base=10, subs=subs))
        axis.set_minor_formatter(NullFormatter())


def shown_baselines(results: Results) -> dict[str, float]:
    """The baselines that the curves are drawn with: losses go with val_loss alone."""
    return {n: v for n, v in baselines(results.data).items() if v > 0} if results.metric == "val_loss" else {}


def baseline_lines(axes: Any, shown: Mapping[str, float]) -> None:
    """A dashed line per baseline, named beside the axes, where no trial's line runs; the axes' limits stand by then."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = {name: float(to_axes.transform((axes.get_xlim()[0], loss))[1]) for name, loss in shown.items()}
    for name, loss in shown.items():
        axes.axhline(loss, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), zorder=3)
        # Names of two lines that almost touch give way to each other.
        gaps = [
            heights[name] - height for other, height in heights.items() if other != name and abs(heights[name] - height) < 0.1
        ]
        side = "center" if not gaps else ("bottom" if gaps[0] > 0 else "top")
        at = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(name.replace(" ", "\n", 1), (1.0, loss), ha="left", va=side, fontsize=9, color=INK, **at)


def curves_figure(results: Results) -> Figure | None:
    """The objective by epoch, a line per trial; None where no trial has reported a finite value.

    The best is highlighted; a cross marks the last finite value of one that diverged, a dot the end of one that was
    stopped; dashed lines are the losses of no model (mean image, noisy input). Of many trials one in so many is drawn, evenly
    by rank, the best among them.
    """
    metric, rows = results.metric, results.rows
    if metric not in rows or not np.isfinite(rows[metric]).any():
        return None
    ranked = results.leaderboard["trial"]
    ranked = ranked[ranked.isin(rows["trial"])]
    one_in = -(-len(ranked) // _MAX_LINES)
    groups: Any = rows[rows["trial"].isin(ranked.iloc[::one_in])].groupby("trial")
    lines = {int(trial): group for trial, group in groups}
    best = None if results.best is None else int(results.best["trial"])
    figure = Figure(figsize=(6.6, 4.3), layout="constrained")
    axes = figure.add_subplot()
    plain_axes(axes)
    colour = _line_colours(figure, axes, results, len(lines))
    crowd = len(lines)
    width, alpha = (1.6, 0.95) if crowd <= 20 else (1.0, 0.6)
    trials = results.trials.set_index("trial")
    marks: dict[str, tuple[list[float], list[float]]] = {"diverged": ([], []), "failed": ([], []), "stopped": ([], [])}
    for trial, group in lines.items():
        if trial == best:
            continue
        _line(axes, group, metric, color=colour(trial), linewidth=width, alpha=alpha, zorder=2)
        ended = str(trials.loc[trial, "status"])
        finite = group[np.isfinite(group[metric])]
        if ended in marks and len(finite):
            marks[ended][0].append(float(finite["epoch"].iloc[-1]))
            marks[ended][1].append(float(finite[metric].iloc[-1]))
    if best is not None and best in lines:
        settings = settings_text(dict(trials.loc[best]), results.params)
        label = f"best: {shortened(settings, 64) or f'trial {best}'}"
        _line(axes, lines[best], metric, color="white", linewidth=4.6, zorder=4)
        _line(axes, lines[best], metric, color=BEST, linewidth=2.6, zorder=5, label=label)
    compared = shown_baselines(results)
    _scale(axes, results, compared)
    baseline_lines(axes, compared)
    _draw_marks(axes, marks)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    first, last = float(rows["epoch"].min()), float(rows["epoch"].max())
    margin = max((last - first) * 0.03, 0.3)
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("epoch")
    count = f"{crowd} trial{'s' if crowd > 1 else ''}"
    axes.set_title(f"{metric} by epoch, {count if one_in == 1 else f'{crowd} of {len(ranked)} trials, 1 in {one_in} by rank'}")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=min(len(handles), 4), handlelength=1.6, columnspacing=1.4)
    return figure


def _line(axes: Any, group: pd.DataFrame, metric: str, **style: Any) -> None:
    values = group[metric].to_numpy(dtype=float, na_value=np.nan)
    values = np.where(np.isfinite(values), values, np.nan)
    # A line of one point is invisible.
    style["marker"] = "o" if np.isfinite(values).sum() == 1 else None
    axes.plot(group["epoch"].to_numpy(dtype=float), values, markersize=4, solid_capstyle="round", **style)


def _draw_marks(axes: Any, marks: dict[str, tuple[list[float], list[float]]]) -> None:
    looks = {
        "diverged": {"marker": "X", "s": 46, "color": BAD, "edgecolors": "white", "linewidths": 0.6},
        "failed": {"marker": "s", "s": 24, "color": INK, "edgecolors": "white", "linewidths": 0.6},
        "stopped": {"marker": "o", "s": 12, "color": SOFT, "linewidths": 0},
    }
    for status, (x, y) in marks.items():
        if x:
            # What ran out of the picture is marked at its edge.
            inside = np.clip(y, *axes.get_ylim())
            axes.scatter(x, inside, label=status, zorder=6 if status == "diverged" else 3, clip_on=False, **looks[status])


def _line_colours(figure: Figure, axes: Any, results: Results, num_lines: int) -> Callable[[int], Any]:
    """The colour of each trial's line: by the first swept number, so that the crowd tells something."""
    axis = next((a for a in swept_axes(results) if a.numeric), None)
    if axis is None or num_lines < 2:
        return lambda _: "#7b8794"
    low, high = float(axis.values[0]), float(axis.values[-1])
    norm = LogNorm(low, high) if axis.log else Normalize(low, high)
    # Dark to light blue is "good to poor" on the map; here colour is a setting, so it is another hue.
    colours = mpl.colormaps["viridis"]
    values = results.trials.set_index("trial")[axis.name]
    if len(axis.values) <= _MANY:
        for value in axis.values:
            axes.plot([], [], color=colours(0.92 * norm(float(value))), linewidth=1.8, label=f"{axis.name} {number(value)}")
    else:
        _colour_bar(figure, axes, axis, norm)

    def colour(trial: int) -> Any:
        value = values[trial]
        return "#7b8794" if pd.isna(value) else colours(0.92 * float(norm(float(value))))

    return colour


def _colour_bar(figure: Figure, axes: Any, axis: Axis, norm: Any) -> None:
    shades = LinearSegmentedColormap.from_list("lines", mpl.colormaps["viridis"](np.linspace(0, 0.92, 128)))
    bar = figure.colorbar(mpl.cm.ScalarMappable(norm, shades), ax=axes, pad=0.02, aspect=30)
    log_or_linear(bar.ax.yaxis, axis.log, norm.vmin, norm.vmax)
    bar.outline.set_visible(False)
    bar.set_label(axis.name)


def _scale(axes: Any, results: Results, shown: dict[str, float]) -> None:
    """Logarithmic where all values are positive losses; cut where a diverging trial would flatten the others."""
    values = results.rows[results.metric].to_numpy(dtype=float, na_value=np.nan)
    values = values[np.isfinite(values)]
    log = results.mode == "min" and bool((values > 0).all())
    log_or_linear(axes.yaxis, log, max(values.min(), 1e-300), max(values.max(), 1e-300))
    marks = list(shown.values())
    if log:
        low = min([values.min(), *marks])
        ceiling = max(3 * max(marks, default=0.0), 30 * float(np.median(values)))
        high = max(min(values.max(), ceiling), *marks, low * 1.2)
        room = (high / low) ** 0.06
        axes.set_ylim(low / room, high * room)
        log_or_linear(axes.yaxis, True, low, high)
        return
    low, high, _ = colour_range(values.tolist(), results.mode == "min")
    low, high = min([low, *marks]), max([high, *marks])
    room = (high - low) * 0.06
    axes.set_ylim(low - room, high + room)

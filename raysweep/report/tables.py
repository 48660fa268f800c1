"""Numbers as people read them, and the report's tables: leaderboard, failures, data facts, settings.

Pure functions from results to texts; what they look like on a page is page.py, the sentences are answer.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import yaml

from raysweep.store.results import Results
from raysweep.sweep_settings import SEED

MAX_TRACEBACK_LINES = 60
"""A traceback longer than this is cut in the middle on the page; trials.csv has it whole."""

ERROR_WIDTH = 400
"""Characters of an error in a line: what raysweep has to say of one, with a long path in it, and no tensor."""

NONE = "–"
"""What stands for a value that there is not."""


@dataclass(frozen=True)
class Table:
    """Texts in rows, not escaped; `numeric` holds the columns to align right, `marked` the row to highlight."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    marked: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Failure:
    """One distinct error, the trials that it ended, and the first one's traceback."""

    status: str
    error: str
    traceback: str
    trials: tuple[int, ...]


def missing(value: Any) -> bool:
    """Whether a frame's value stands for none: None, NA or NaN (a list is a value)."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def number(value: Any, digits: int = 6) -> str:
    """A setting or a measured value as a short text: `0.001`, `1e-5`, `3`, `true`, `[0.9, 0.999]`."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(number(v, digits) for v in value) + "]"
    if missing(value):
        return NONE
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d+)", lambda m: f"e{m[1].replace('+', '')}{m[2]}", f"{value:.{digits}g}")
    return str(value)


def measured(value: Any) -> str:
    """A measured value with three significant digits, zeros kept, so that 0.0100 and 0.0041 line up."""
    if missing(value):
        return NONE
    value = float(value)
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e5:
        return number(value, 3)
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def times(ratio: float) -> str:
    """A ratio in words' place: `2.4x`, `26x`."""
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x"


def duration(seconds: Any) -> str:
    """Seconds as `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`."""
    if missing(seconds):
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def moment(seconds: Any) -> str:
    """A time of the journal (seconds since 1970) in UTC, to the minute: the same text on every machine."""
    return NONE if missing(seconds) else datetime.fromtimestamp(float(seconds), timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def baselines(data: Mapping[str, Any]) -> dict[str, float]:
    """The losses of no model at all that the journal knows: name -> mean squared error, comparable with val_loss."""
    # Without noise the untouched input is the user's X, and "noisy" would be a guess.
    untouched = "noisy input" if data.get("noise") else "input as it is"
    named = {"mean image": data.get("baseline_mean_image"), untouched: data.get("baseline_input")}
    return {name: float(v) for name, v in named.items() if isinstance(v, int | float) and math.isfinite(v)}


def settings_text(trial: Mapping[str, Any], params: Mapping[str, str]) -> str:
    """A trial's swept settings to four digits, `lr 0.003, depth 2`; those it does not set are left out."""
    return ", ".join(
        f"{short} {shortened(number(trial[short], 4), 60)}" for short in params.values() if not missing(trial[short])
    )


_VERSUS = "below mean image"


def leaderboard(results: Results, limit: int = 50, digits: int = 6) -> Table:
    """The trials, best first, with what became of each; at most `limit`, and a note on where the others are.

    Args:
        results: of the sweep.
        limit: rows at most.
        digits: of the settings; six show a sampled value whole.
    """
    board, metric = results.leaderboard, results.metric
    params = [*results.params.values(), *([SEED] if results.has_seeds else [])]
    mean_image = baselines(results.data).get("mean image", 0.0)
    compared = mean_image > 0 and metric == "val_loss"
    losses = [metric] if metric == "val_loss" else [metric, "val_loss"]
    header = ["", "trial", *params, *losses, *([_VERSUS] if compared else [])]
    header += ["best epoch", "parameters", "time", "status", "why"]
    best = results.best
    rows = []
    for place, (_, trial) in enumerate(board.head(limit).iterrows(), start=1):
        ranked = best is not None and trial["status"] not in ("diverged", "failed", "infeasible") and not missing(trial[metric])
        row = [
            str(place) if ranked else "",
            str(trial["trial"]),
            *(shortened(number(trial[name], digits), 60) for name in params),
        ]
        row += [measured(trial[name]) for name in losses]
        if compared:
            row.append(versus(trial["val_loss"], mean_image))
        row += [_epochs(trial), thousands(trial["parameters"]), duration(trial["seconds"])]
        rows.append((*row, str(trial["status"]), abridged(str(trial["reason"]), ERROR_WIDTH)))
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    more = len(board) - limit
    words = {i for i, name in enumerate(header) if name in ("status", "why")}
    words |= {i + 2 for i, name in enumerate(params) if not pd.api.types.is_numeric_dtype(board[name])}
    return Table(
        tuple(header),
        tuple(rows),
        frozenset(range(len(header))) - words,
        marked=0 if best is not None else None,
        note=f"... {more} more in trials.csv" if more > 0 else "",
    )


def explained(board: Table) -> Table:
    """The leaderboard with a sentence on the column whose name does not say all."""
    if _VERSUS not in board.header:
        return board
    text = f"{_VERSUS}: the loss of answering every input with the mean training image, divided by the trial's val_loss."
    return replace(board, note=f"{board.note}. {text}" if board.note else text)


def _epochs(trial: Any) -> str:
    return NONE if trial["epochs"] == 0 else f"{number(trial['best_epoch'])} of {trial['epochs']}"


def versus(loss: Any, baseline: float) -> str:
    """How many times lower than a baseline a loss is, as a table's cell."""
    if missing(loss) or not math.isfinite(loss) or loss <= 0:
        return NONE
    ratio = baseline / float(loss)
    return times(ratio) if ratio > 1 else "not better"


def thousands(value: Any) -> str:
    """A count with its thousands apart: `1 234 567` with thin spaces."""
    return NONE if missing(value) else f"{int(value):,}".replace(",", "\u2009")


def shortened(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def abridged(text: str, limit: int) -> str:
    """One line of at most `limit` characters: where it is too long its start and its end, which says what to do."""
    line = " ".join(text.split())
    head = (limit - 1) // 2
    return line if len(line) <= limit else f"{line[:head]}…{line[head + 1 - limit :]}"


def failures(results: Results) -> list[Failure]:
    """The distinct errors of failed and infeasible trials, the most frequent first, each with one traceback.

    Errors are the same when they come from the same line with the same text; addresses in it are no difference.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for _, trial in results.trials.iterrows():
        if trial["status"] in ("failed", "infeasible"):
            place, text = _error_of(trial)
            key = (str(trial["status"]), place, re.sub(r"0x[0-9a-fA-F]+", "0x", text))
            groups.setdefault(key, []).append(dict(trial))
    found = []
    for (status, _, _), trials in groups.items():
        text = _error_of(trials[0])[1]
        found.append(Failure(status, text, _cut(str(trials[0]["error"])), tuple(int(t["trial"]) for t in trials)))
    return sorted(found, key=lambda f: (-len(f.trials), f.trials))


def _error_of(trial: Any) -> tuple[str, str]:
    lines = [line for line in str(trial["error"]).splitlines() if line.strip()]
    places = [line.strip() for line in lines if re.match(r'\s+File ".*", line \d+', line)]
    last = lines[-1].strip() if lines else ""
    text = last or str(trial["reason"]).strip() or "no error was recorded"
    return (places[-1] if places else ""), abridged(text, ERROR_WIDTH)


def _cut(traceback: str) -> str:
    lines = traceback.strip().splitlines()
    if len(lines) <= MAX_TRACEBACK_LINES:
        return "\n".join(lines)
    head = MAX_TRACEBACK_LINES // 3
    tail = MAX_TRACEBACK_LINES - head
    left_out = f"  ... {len(lines) - head - tail} lines left out; trials.csv has them ..."
    return "\n".join([*lines[:head], left_out, *lines[-tail:]])


def facts(results: Results) -> Table:
    """What is known about the data, a fact a row; facts missing in an old journal are left out."""
    data = results.data
    rows: list[tuple[str, str]] = []
    if data.get("source") is not None:
        rows.append(("source", str(data["source"])))
    if data.get("num_train") is not None:
        rows.append(("samples", f"{number(data['num_train'])} for training, {number(data.get('num_val'))} for validation"))
    for key, name in (("x_shape", "X (input)"), ("y_shape", "Y (expected)")):
        if data.get(key):
            rows.append((name, " × ".join(str(side) for side in data[key]) + " (height × width × channels)"))
    if data.get("dtype") is not None:
        rows.append(("values", str(data["dtype"])))
    if data.get("noise") is not None:
        rows.append(("noise added to X", f"standard deviation {number(data['noise'])}" if data["noise"] else "none"))
    rows += [(f"loss of the {name}", measured(loss)) for name, loss in baselines(data).items()]
    if data.get("fingerprint") is not None:
        rows.append(("fingerprint", str(data["fingerprint"])))
    return Table(("fact", "value"), tuple(rows))


def settings_yaml(results: Results) -> str:
    """The sweep as it was given (a run without a sweep: its experiment), as YAML."""
    tree = results.start.get("sweep") or {"experiment": results.experiment}
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))

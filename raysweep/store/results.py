"""Results of a sweep as pandas frames, read from its journal alone; no torch, no ray.

N planned trials give N rows, whatever became of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysweep.config import Sweep
from raysweep.errors import StoreError
from raysweep.store.audits import audited_trials
from raysweep.store.configurations import Contest, Groups, configurations, group, read_contest
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import read_entries
from raysweep.store.population import population_frame, settings_columns, with_settings
from raysweep.store.prediction import WallTime
from raysweep.store.reasons import describe_end
from raysweep.store.rows import RowTable, by_trial
from raysweep.sweep_settings import SEED

STATUSES = ("completed", "stopped", "diverged", "failed", "infeasible", "interrupted", "budget", "unfinished")
"""How a trial can have ended; `unfinished`: the journal ends before the trial does (running, or killed)."""

_RANKED = ("completed", "stopped", "interrupted", "budget", "unfinished")


@dataclass
class _Trial:
    number: int
    key: str
    overrides: dict[str, Any]
    planned: dict[str, Any]
    end: dict[str, Any] | None = None
    attempts: int = 0
    copies: list[dict[str, Any]] = field(default_factory=list)

    def settings(self, epoch: int | None) -> dict[str, Any]:
        """The overrides that an epoch was trained with; without one, the newest."""
        earlier = [copy["overrides"] for copy in self.copies if epoch is None or copy["epoch"] < epoch]
        return earlier[-1] if earlier else self.overrides

    def parameters(self, epoch: int | None) -> int | None:
        """Of the model that an epoch was trained with; a copy has its donor's."""
        earlier = [copy["parameters"] for copy in self.copies if epoch is None or copy["epoch"] < epoch]
        return earlier[-1] if earlier else self.planned.get("parameters") or None  # 0: no model could be built


@dataclass
class Results:
    """What a sweep's directory holds.

    Attributes:
        directory: where it lies now.
        sweep: its configuration.
        data: the facts about the images (counts, shapes, fingerprint, baselines) from the journal's start event.
        trials: one row per planned trial, by number; integers are Int64, a missing value is NA.
        rows: one row per trial and epoch; of a population (scheduler pbt) also with the settings that the epoch was trained
            with, under their short names (the whole key where a row has such a column, as `optim.lr` beside `lr`).
        population: who copied whom (scheduler pbt): trial, generation, epoch, from, and each setting before and after.
        resizes: what happened to the trials' workers (resize, failure, preemption), in order; fields as in attempts.Event.
        groups: which trials are one configuration.
        finished: how the sweep ended (completed, interrupted, budget), None where it has not.
        wall: what it was predicted to take, and took.
    """

    directory: SweepDirectory
    sweep: Sweep | None
    experiment: dict[str, Any]
    start: dict[str, Any]
    data: dict[str, Any]
    metric: str
    mode: str
    params: dict[str, str]
    trials: pd.DataFrame
    rows: pd.DataFrame
    ends: dict[int, dict[str, Any]]
    decisions: list[dict[str, Any]]
    resizes: list[dict[str, Any]]
    population: pd.DataFrame
    groups: Groups
    finished: str | None
    wall: WallTime = field(default_factory=WallTime)

    @property
    def has_seeds(self) -> bool:
        """Whether some configuration was trained with more than one seed."""
        return bool(self.groups.seeds)

    @property
    def contest(self) -> Contest:
        """The newest contest of the best configurations."""
        return read_contest(self.decisions)

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """One row per configuration, best first; columns and ranking as in configurations.configurations."""
        return configurations(self.trials, self.groups, self.contest, self.params.values(), self.metric, self.mode)

    @property
    def leaderboard(self) -> pd.DataFrame:
        """The trials, best first; then those without a finite objective, the diverged and the failed.

        With several seeds, the trials of the best configuration come first.
        """
        frame = self.trials.copy()
        ranked = frame["status"].isin(_RANKED) & frame[self.metric].notna()
        value = frame[self.metric].astype("float64") * (1 if self.mode == "min" else -1)
        places = {n: place for place, ns in enumerate(self.configurations["trials"]) for n in ns} if self.has_seeds else {}
        place = [places.get(number, 0) for number in frame["trial"]]
        order = pd.DataFrame({"last": ~ranked, "place": place, "value": value, "trial": frame["trial"]})
        by = ["last", "place", "value", "trial"]
        return frame.loc[order.sort_values(by, na_position="last").index].reset_index(drop=True)

    @property
    def best(self) -> pd.Series[Any] | None:
        """The best trial's row, or None where no trial has a finite objective."""
        board = self.leaderboard
        if board.empty or board.loc[0, "status"] not in _RANKED or board[self.metric].isna().iloc[0]:
            return None
        return board.iloc[0]

    @property
    def audited(self) -> pd.DataFrame:
        """The trials that ran on although the scheduler would have stopped them; columns as in audits.audited_trials."""
        contest = self.sweep is not None and self.sweep.search.contenders is not None
        unseen = [number for number, first in self.groups.first.items() if contest and number != first]
        return audited_trials(self.trials, self.rows, self.ends, self.decisions, self.metric, self.mode, unseen)

    def best_directory(self) -> Path | None:
        """The directory of the best trial."""
        best = self.best
        return None if best is None else self.directory.trial(str(best["key"]))


def load(path: str | Path) -> Results:
    """Read a sweep's directory.

    Raises:
        StoreError: there is no journal, or it is damaged before its last line.
    """
    directory = SweepDirectory(Path(path).resolve())
    start: dict[str, Any] = {}
    trials: dict[int, _Trial] = {}
    decisions: list[dict[str, Any]] = []
    resizes: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    finished: str | None = None
    wall = WallTime()
    table = RowTable()
    for number, (columns, event) in enumerate(read_entries(directory.journal)):
        try:
            if columns:
                if event[0] not in trials:
                    raise KeyError(event[0])
                table.add(columns, event)
                wall.see("row", {"time": event[-1]})
                continue
            name = event.pop("event")
            wall.see(name, event)
            if name == "start":
                start, finished = event, None
            elif name == "trial":
                # A sweep with more epochs plans its trials again; one that could not be trained before has another key then.
                planned = _Trial(event["trial"], event["key"], event["overrides"], event)
                known = trials.get(event["trial"], planned)
                known = known if known.key == planned.key else planned
                trials[event["trial"]] = replace(planned, end=known.end, attempts=known.attempts, copies=known.copies)
            elif name == "run":
                trials[event["trial"]].attempts += 1
                trials[event["trial"]].end = None
            elif name in ("resize", "failure", "preemption"):
                trials[event["trial"]].attempts += event["to"] is not None
                resizes.append({"event": name, **event})
            elif name == "population":
                parameters = trials[event["from"]].parameters(None)
                trials[event["trial"]].copies.append({**event, "parameters": parameters})
                trials[event["trial"]].end = None
                copies.append(event)
            elif name == "decision":
                decisions.append(event)
            elif name == "end":
                trials[event["trial"]].end = event
            elif name == "finish":
                finished = event["status"]
        except (KeyError, TypeError) as error:
            raise StoreError(f"{directory.journal} is damaged: event {number + 1} makes no sense ({error!r})") from None
    if not start:
        raise StoreError(f"{directory.journal} has no start event; it is not a journal of raysweep, or its first line was lost")
    return replace(_results(directory, start, trials, table.frame(), decisions, resizes, copies, finished), wall=wall)


def _results(
    directory: SweepDirectory,
    start: dict[str, Any],
    trials: dict[int, _Trial],
    rows: pd.DataFrame,
    decisions: list[dict[str, Any]],
    resizes: list[dict[str, Any]],
    copies: list[dict[str, Any]],
    finished: str | None,
) -> Results:
    sweep = Sweep.from_dict(start["sweep"], str(directory.journal)) if start.get("sweep") else None
    metric = sweep.objective.metric if sweep else "val_loss"
    mode = sweep.objective.mode if sweep else "min"
    params = sweep.short_names() if sweep else {}
    is_population = sweep is not None and sweep.scheduler.name == "pbt"
    ordered = [trials[number] for number in sorted(trials)]
    seed = sweep.experiment.train.seed if sweep else 0
    groups = group({t.number: t.overrides for t in ordered}, sweep.space if sweep else (), seed)
    frame = _trials_frame(ordered, rows, metric, mode, params)
    if groups.seeds:
        frame.insert(2, SEED, pd.Series([groups.seeds[number] for number in frame["trial"]], dtype="Int64"))
    return Results(
        directory=directory,
        sweep=sweep,
        experiment=start["experiment"],
        start=start,
        data=start.get("data") or {},
        metric=metric,
        mode=mode,
        params=params,
        trials=frame,
        rows=with_settings(rows, {t.number: t.settings for t in ordered} if is_population else {}, params),
        ends={t.number: t.end for t in ordered if t.end},
        decisions=decisions,
        resizes=resizes,
        population=population_frame(copies, {t.number: t.settings for t in ordered}, params),
        groups=groups,
        finished=finished,
    )


_FLOATS = ("val_loss", "train_loss", "psnr", "seconds", "samples_per_second", "data_wait", "peak_memory_bytes")
_TOLD = ("epoch", *_FLOATS, "world_size")
_INTEGERS = ("trial", "epochs", "best_epoch", "parameters", "world_size", "attempts")


def _best_row(own: dict[str, np.ndarray[Any, Any]], metric: str, mode: str) -> dict[str, Any]:
    """Of a trial's columns, by epoch: what stands at its best finite objective, the first of equals; empty without one."""
    values = own.get(metric, np.empty(0)) * (1 if mode == "min" else -1)
    if not np.isfinite(values).any():
        return {}
    place = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    return {name: column[place] for name, column in own.items() if not math.isnan(column[place])}


def _median(values: np.ndarray[Any, Any]) -> float:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else math.nan


def _mean(values: np.ndarray[Any, Any]) -> float:
    return float(np.nansum(values) / count) if (count := np.isfinite(values).sum()) else math.nan


def _trials_frame(trials: list[_Trial], rows: pd.DataFrame, metric: str, mode: str, params: dict[str, str]) -> pd.DataFrame:
    told = {n: rows[n].to_numpy(dtype=np.float64, na_value=np.nan) for n in (*_TOLD, metric) if n in rows}
    places, nothing = by_trial(rows), np.empty(0)
    records = []
    for trial in trials:
        own = {name: column[places.get(trial.number, slice(0))] for name, column in told.items()}
        best, last = _best_row(own, metric, mode), {name: values[-1] for name, values in own.items() if len(values)}
        end = trial.end or {"status": "unfinished", "reason": {"text": "the journal ends before this trial does"}}
        reason = end.get("reason") or {}
        records.append(
            {
                "trial": trial.number,
                "key": trial.key,
                **{short: trial.settings(best.get("epoch")).get(key) for key, short in params.items()},
                "status": end["status"],
                "epochs": last.get("epoch", 0),
                "best_epoch": best.get("epoch"),
                **{name: best.get(name) for name in ("val_loss", "train_loss", "psnr")},
                "seconds": round(sum(np.nan_to_num(own.get("seconds", nothing)).tolist()), 3),
                "samples_per_second": _median(own.get("samples_per_second", nothing)),
                "data_wait": _mean(own.get("data_wait", nothing)),
                "peak_memory_bytes": max(np.nan_to_num(own.get("peak_memory_bytes", own["epoch"] * 0)), default=None),
                "parameters": trial.parameters(best.get("epoch")),
                "world_size": last.get("world_size"),
                "attempts": trial.attempts,
                "reason": describe_end(end),
                "error": reason.get("traceback") or "",
                "checkpoint": f"trials/{trial.key}/best.pt" if best else "",
            }
        )
    columns = ["trial", "key", *params.values(), "status", "epochs", "best_epoch", *_FLOATS]
    columns += ["parameters", "world_size", "attempts", "reason", "error", "checkpoint"]
    frame = pd.DataFrame.from_records(records, columns=columns)
    # First the settings' own columns, by their values; then the others, so that a loss of 1.0 stays a float.
    settings = settings_columns(frame, params.values())
    texts = dict.fromkeys(("key", "status", "reason", "error", "checkpoint"), "string")
    return frame.assign(**settings).astype({**texts, **dict.fromkeys(_INTEGERS, "Int64"), **dict.fromkeys(_FLOATS, "float64")})

"""What a sweep looks like while it runs: a live table on a terminal, a line per ended trial elsewhere."""

from __future__ import annotations

import heapq
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysweep.report import tables
from raysweep.report.answer import trial_list
from raysweep.report.tables import ERROR_WIDTH, abridged
from raysweep.sweep_settings import SEED
from raysweep.tune.engine import Watcher
from raysweep.tune.leader import Leading
from raysweep.tune.recorder import SweepRecorder, TrialState

_STYLES = {"running": "cyan", "completed": "green", "stopped": "yellow", "diverged": "red", "failed": "bold red"}
_NONE = "no result yet"
_ROOM = 6  # lines for the table's frame and the summary


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: Any) -> str:
    """A metric or a setting, written as the report writes it, to four digits."""
    return "" if value is None else tables.number(value, 4)


class Progress(Watcher):
    """Shows a sweep on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._began = time.monotonic()
        self._attempts: dict[int, int] = {}  # told so far; a trial's first one here may be the third of its life

    def begin(self, recorder: SweepRecorder) -> None:
        self._recorder = recorder
        self._names = recorder.plan.sweep.short_names()
        self._epochs = recorder.plan.sweep.experiment.train.epochs
        self._began = time.monotonic()
        self._leading = Leading(recorder) if recorder.plan.sweep.search.seeds > 1 else None
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def changed(self, state: TrialState) -> None:
        # Trials that never started end together with the sweep; the report counts them.
        if state.status == "running" and state.attempts > self._attempts.setdefault(state.trial.number, state.attempts):
            self._attempts[state.trial.number] = state.attempts
            again = f"trial {state.trial.number} ({self.settings(state)}): its process was lost; it goes on from"
            self._console.print(f"{again} epoch {state.epoch + 1}, attempt {state.attempts}", highlight=False)
        if state.has_ended and not (state.epoch == 0 and state.status in ("interrupted", "budget")):
            self._console.print(self.line(state), highlight=False)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def settings(self, state: TrialState) -> str:
        """`lr 0.001, depth 2`, with its seed where that is a further one."""
        overrides = state.trial.overrides
        shown = {**self._names, **({SEED: "seed"} if SEED in overrides else {})}
        return ", ".join(f"{short} {number(overrides[key])}" for key, short in shown.items() if key in overrides)

    def line(self, state: TrialState) -> Text:
        """One line for a trial that has ended."""
        metric = self._recorder.plan.sweep.objective.metric
        ended = self._recorder.num_ended
        best = f"best {metric} {number(state.best)}" if state.best is not None else f"no finite {metric}" if state.epoch else ""
        if state.status in ("failed", "infeasible"):
            best = abridged(str(state.reason.get("text", "")), ERROR_WIDTH)
        text = f"[{ended}/{self._recorder.plan.num_planned}] trial {state.trial.number} ({self.settings(state)}): "
        after = f" after {state.epoch} epoch{'' if state.epoch == 1 else 's'}" if state.epoch else " before its first epoch ended"
        tail = f": {best}" if state.status == "infeasible" else f"{after}{', ' if best else ''}{best}{self._left()}"
        return Text.assemble(text, (state.status, _STYLES.get(state.status, "")), tail)

    def _left(self) -> str:
        left = self._recorder.seconds_left()
        return f"; about {duration(left)} left" if left and not self._recorder.why_ended else ""

    def render(self) -> Table:
        """The live table: running trials first, then as many of the others as fit the terminal."""
        metric = self._recorder.plan.sweep.objective.metric
        leaders, best = self._best()
        table = Table(caption=self._summary(best), caption_justify="left")
        for name in ("trial", *self._names.values(), "state", "epoch", metric, "best"):
            table.add_column(name, justify="left" if name == "state" else "right")
        states, room = self._recorder.states.values(), max(1, self._console.height - _ROOM)
        shown = heapq.nsmallest(room, states, key=lambda s: (s.status != "running", s.status == "waiting", s.trial.number))
        for state in sorted(shown, key=lambda s: s.trial.number):
            table.add_row(
                str(state.trial.number),
                *(number(state.trial.overrides.get(key)) for key in self._names),
                Text(state.status, _STYLES.get(state.status, "dim")),
                f"{state.epoch}/{self._epochs}",
                number(state.value),
                number(state.best),
                style="bold" if state.trial.number in leaders else "",
            )
        return table

    def _best(self) -> tuple[tuple[int, ...], str]:
        """The best trial, or the trials of the best configuration, and a few words for it: as the report will say it."""
        if self._leading is None:
            best = self._recorder.best()
            return ((best.trial.number,), f"best: trial {best.trial.number}, {number(best.best)}") if best else ((), _NONE)
        leader = self._leading.find()
        if leader is None:
            return (), _NONE
        num, further = len(leader.values), "further " if len(leader.values) < len(leader.trials) else ""
        return (
            leader.trials,
            f"best: {trial_list(leader.trials)}, {number(leader.mean)} (mean of {num} {further}seed{'s'[: num - 1]})",
        )

    def _summary(self, best: str) -> str:
        ended = self._recorder.num_ended
        passed = duration(time.monotonic() - self._began)
        return f"{ended}/{self._recorder.plan.num_planned} ended; {best}; {passed} passed{self._left()}"

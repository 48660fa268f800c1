"""A sweep's driver that lives more than once: it plays trials without Ray, and can be killed at any byte of its journal."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysweep.config import Sweep
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter, plain, read_events
from raysweep.train.evaluate import psnr
from raysweep.tune.callback import SweepEnd
from raysweep.tune.own import fault, raise_fault
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import found, is_over
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.search import searcher
from raysweep.tune.tuning import replayed

Row = dict[str, Any]


class Killed(BaseException):
    """What SIGKILL is to a process."""


class MortalJournal(JournalWriter):
    """A journal whose process dies after so many bytes, in the middle of a line or at its end."""

    bytes_left: int | None = None

    def _append(self, content: Any, durable: bool) -> None:
        if self.bytes_left is not None:
            line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
            if len(line) > self.bytes_left:
                self._file.write(line[: self.bytes_left])
                self._file.flush()
                raise Killed
            self.bytes_left -= len(line)
        super()._append(content, durable)


def drawn(*what: Any) -> float:
    """A number from 0 to 1 that follows from its arguments."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6], "big") / 2**48


@dataclass
class World:
    """What outlives the driver: checkpoints, and what each training comes to, a function of its key and epoch.

    Attributes:
        seed: of all that is drawn.
        saves: how likely an epoch's end is a checkpoint; a training's end always is.
        fates: how likely a trial diverges, fails once, or ends by its patience.
        trained: keys and epochs that were trained, in order.
        now: seconds; an epoch takes one.
    """

    seed: int = 0
    saves: float = 1.0
    fates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    trained: list[tuple[str, int]] = field(default_factory=list)
    checkpoints: dict[str, tuple[int, Row]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    now: float = 0.0

    def loss(self, key: str, epoch: int, overrides: dict[str, Any]) -> float:
        """What an epoch of a trial comes to."""
        return round(drawn(self.seed, key) * 0.5 + drawn(self.seed, key, epoch) * 0.3 + 1 / epoch, 4)

    def fate(self, key: str) -> tuple[str, int]:
        """How a trial ends before its last epoch, and in which."""
        place, fate = drawn(self.seed, key, "fate"), ""
        for name, share in zip(("diverged", "failed", "patience"), self.fates, strict=True):
            if 0 <= place < share:
                fate = name
            place -= share
        return fate, 1 + int(5 * drawn(self.seed, key, "when"))

    def train(self, config: dict[str, Any], epochs: int) -> Iterator[dict[str, Any]]:
        """What a trial's actor reports, as tune/trial.py does: from its newest checkpoint to its end."""
        key = config["key"]
        (fate, when), (at, row) = self.fate(key), self.checkpoints.get(key, (0, {}))
        last: dict[str, Any] = {}
        end: tuple[str, Row] = ("completed", {})
        patience: tuple[str, Row] = ("stopped", {"rule": "patience", "metric": "val_loss", "patience": 1})
        told = [row] if row else []
        while True:
            for row in told:
                shown = {"epoch": row["epoch"], "row": json.dumps(plain(row))}
                if row["epoch"] == epochs:
                    last = shown  # travels with the end
                else:
                    yield shown
            if fate == "patience" and at >= when:
                end = patience
            if end[0] != "completed" or at >= epochs:
                break
            at += 1
            if fate == "failed" and at == when and not self.failed[key]:
                self.failed[key] += 1
                end, told = ("failed", {"text": "an error"}), []
                continue
            self.trained.append((key, at))
            self.now += 1
            loss, is_bad = self.loss(key, at, config["overrides"]), fate == "diverged" and at == when
            row = {"epoch": at, "val_loss": float("nan") if is_bad else loss, "train_loss": loss, "psnr": psnr(loss)}
            row |= {"seconds": 1.0, "world_size": 1}
            is_end = at == epochs or (fate == "patience" and at >= when)
            if not is_bad and (is_end or drawn(self.seed, key, at, len(self.trained)) < self.saves):
                self.checkpoints[key] = (at, row)
            if is_bad:
                end = ("diverged", {"what": "val_loss", "step": at, "lr": 0.1})
            told = [row]
        yield {**last, "end": json.dumps({"status": end[0], "reason": end[1]})}


class _Live:
    """Ray Tune's trial, as far as schedulers look."""

    status = "PENDING"

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config = trial_id, config


@dataclass
class _Running:
    live: _Live
    reports: Iterator[dict[str, Any]]
    next: dict[str, Any]
    """Trained already while the driver handles the one before: in flight where the driver dies."""


def life(
    tree: dict[str, Any],
    storage: Path,
    world: World,
    *,
    dies_after: int | None = None,
    retry_failed: bool = False,
    at_once: int = 1,
    interrupted_after: int | None = None,
    seed: int = 0,
) -> str:
    """One life of a sweep's driver; what was there before is gone on with, as engine.run_sweep() does.

    Args:
        tree: the sweep's settings.
        storage: where its directory lies.
        world: what its trials find.
        dies_after: bytes of the journal after which it is killed.
        retry_failed: failed trials run again.
        at_once: trials that run at a time; whose report comes next is drawn, and some lose their actor.
        interrupted_after: reports after which Ctrl-C comes.
        seed: of the draws.

    Returns:
        over (there was nothing to do), killed, or the sweep's end: completed, interrupted, budget.
    """
    sweep = Sweep.from_dict(tree)
    plan, past, todo = found(sweep, storage, False, retry_failed, lambda _text: None)
    if past is not None:
        if is_over(plan, past, todo):
            return "over"
        past.directory.check_unchanged(past.size)
    directory = past.directory if past else SweepDirectory.create(storage, sweep.name)
    with closing(MortalJournal(directory.journal, lambda: world.now)) as journal:
        journal.bytes_left = dies_after
        try:
            content = plan.sweep.model_dump(mode="json", exclude_unset=True)
            journal.event("start", sweep=content, experiment=content["experiment"], data=plan.prepared.facts)
            recorder = SweepRecorder(plan, journal, past=past, to_run=[trial.key for trial in todo.to_run])
            scheduler = RecordingScheduler(plan.sweep, recorder)
            to_run = replayed(plan, past, todo, scheduler, recorder)
            search = searcher(plan, to_run, recorder.assigned, recorder.objective, recorder)
            raise_fault(scheduler, search)
            status = "completed"
            if to_run or len(plan.trials) < plan.num_planned:
                end = SweepEnd(sweep.budget, recorder, lambda: world.now, lambda: fault(scheduler, search))
                _play(scheduler, search, recorder, end, world, at_once, interrupted_after, random.Random(seed))
                raise_fault(scheduler, search)
                done = recorder.num_ended >= max(len(recorder.states), plan.num_planned) and not plan.has_contest
                status = end.reason if end.reason and not done else "completed"
            if status == "completed":
                assert all(state.has_ended for state in recorder.states.values()), "it ends, and trials have not"
            recorder.end_rest(status, recorder.why_ended)
            journal.event("finish", status=status)
        except Killed:
            return "killed"
    return status


def _play(
    scheduler: RecordingScheduler,
    search: Any,
    recorder: SweepRecorder,
    end: SweepEnd,
    world: World,
    at_once: int,
    interrupted_after: int | None,
    draw: random.Random,
) -> None:
    epochs = recorder.plan.sweep.experiment.train.epochs
    running: dict[str, _Running] = {}
    number, is_finished, num_reports = 0, False, 0

    def begin(live: _Live) -> None:
        recorder.started(live.trial_id)
        reports = world.train(live.config, epochs)
        running[live.trial_id] = _Running(live, reports, next(reports))

    while (running or not is_finished) and not end.stop_all():
        while not is_finished and len(running) < at_once:
            number += 1
            given = search.suggest(f"id{number}")
            if given is None:
                assert running, "it waits, and nothing runs that it could wait for"
                break
            if not isinstance(given, dict):
                is_finished = True
                break
            live = _Live(f"id{number}", given)
            scheduler.on_trial_add(None, live)
            live.status = "RUNNING"
            begin(live)
        if not running:
            continue
        num_reports += 1
        if interrupted_after is not None and num_reports > interrupted_after:
            end.reason = recorder.why_ended = "interrupted"
            break
        now = running[draw.choice(list(running))]
        if draw.random() < 0.02:  # its actor is lost, and Ray Tune starts it again
            begin(now.live)
        elif scheduler.on_trial_result(None, now.live, now.next) == "STOP":
            now.live.status = "TERMINATED"
            scheduler.on_trial_complete(None, now.live, now.next)
            search.on_trial_complete(now.live.trial_id, now.next)
            del running[now.live.trial_id]
        else:
            now.next = next(now.reports)


def events(storage: Path, *names: str, sweep: str = "s") -> list[dict[str, Any]]:
    """The journal's events of these names, in order; all without names."""
    journal = storage / sweep / "journal.jsonl"
    return [e for e in read_events(journal) if not names or e["event"] in names] if journal.exists() else []


def cut(storage: Path, text: str, after: bool = False, sweep: str = "s") -> None:
    """Kill the driver just before, or just after, it wrote the last line that begins with a text."""
    journal = storage / sweep / "journal.jsonl"
    content = journal.read_bytes()
    place = content.rindex(b"\n" + text.encode()) + 1
    journal.write_bytes(content[: content.index(b"\n", place) + 1 if after else place])

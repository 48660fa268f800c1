"""A population that trains in this process, without Ray: its driver can be killed at any line of the journal."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from raysweep.config import Sweep
from raysweep.experiment import Experiment
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter, read_events
from raysweep.train import checkpoint, optim
from raysweep.train.clone import take
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.population import PopulationRecorder, PopulationSearcher, Segment, paused_after
from raysweep.tune.resume import adopt, read_past, work

Train = Callable[[Experiment, Path, Callable[[dict[str, Any]], None]], tuple[str, dict[str, Any]]]
"""Trains an experiment in a trial's directory from its newest checkpoint; tells rows, returns status and reason."""


class Killed(BaseException):
    """What SIGKILL is to a process."""


class MortalJournal(JournalWriter):
    """A journal whose process dies at its n-th line, before or after it is written."""

    lines_left: float = math.inf
    dies_before = True

    def _append(self, content: Any, durable: bool) -> None:
        self.lines_left -= 1
        if self.lines_left < 0 and self.dies_before:
            raise Killed
        super()._append(content, durable)
        if self.lines_left < 0:
            raise Killed


def settings(epochs: int = 5, space: dict[str, Any] | None = None, seed: int = 11, **scheduler: Any) -> Sweep:
    return Sweep.from_dict(
        {
            "name": "s",
            "experiment": {
                "data": {"source": "digits", "count": 50},
                "model": {"depth": 1, "base_channels": 4},
                "train": {"epochs": epochs, "batch_size": 16},
            },
            "space": space or {"optim.lr": {"loguniform": [1e-4, 1e-1]}, "optim.momentum": {"uniform": [0.1, 0.9]}},
            "search": {"algorithm": "random", "num_samples": 5, "seed": seed},
            "scheduler": {"name": "pbt", "interval": 2, "quantile": 0.4, **scheduler},
        }
    )


def weight_trainer(experiment: Experiment, directory: Path, tell: Callable[[dict[str, Any]], None]) -> tuple[str, dict[str, Any]]:
    """Trains one weight: what a row says depends on all settings and weights that came before it.

    With lr above 0.05 it diverges in the third epoch of a weight that has not been copied.
    """
    found = checkpoint.start(directory)
    weight = torch.nn.Parameter(torch.tensor([1.0]) if found is None else found.content["model"]["weight"])
    optimizer = optim.build(experiment.optim, [weight])
    progress = {"epoch": 1, "step": 0, "global_step": 0, "row": None, "best": math.inf, "best_epoch": 0}
    if found is not None:
        progress = found.content["progress"]
        optimizer.load_state_dict(found.content["optimizer"])
        if progress["row"]:
            tell(progress["row"])
    while progress["epoch"] <= experiment.train.epochs:
        epoch = progress["epoch"]
        weight.grad = torch.tensor([weight.item() + experiment.optim.momentum])
        optim.set_learning_rate(optimizer, experiment.optim.lr)
        optimizer.step()
        loss = abs(weight.item()) if experiment.optim.lr <= 0.05 or epoch != 3 else None
        row = {"epoch": epoch, "step": epoch, "train_loss": loss, "val_loss": loss, "psnr": None, "lr": experiment.optim.lr}
        if loss is None:
            tell(row)
            return "diverged", {"what": "train_loss", "step": epoch, "lr": experiment.optim.lr}
        progress |= {"epoch": epoch + 1, "global_step": epoch, "row": row}
        if loss < progress["best"]:
            progress |= {"best": loss, "best_epoch": epoch}
            checkpoint.save(directory / "best.pt", {"val_loss": loss, "epoch": epoch, "model": {"weight": weight.detach()}})
        if epoch % 2 == 0 or epoch == experiment.train.epochs:
            content = {"model": {"weight": weight.detach()}, "optimizer": optimizer.state_dict(), "progress": progress}
            checkpoint.save_numbered(directory, epoch, content)
        tell(row)
    return "completed", {}


@lru_cache
def planned(sweep: str) -> Plan:
    """A sweep's plan, made once for its many lives."""
    return make_plan(Sweep.model_validate_json(sweep))


class Run:
    """One life of the driver, and its trials `at_once` at a time; what was there before is gone on with."""

    def __init__(self, sweep: Sweep, storage: Path, retry_failed: bool = False) -> None:
        known = planned(sweep.model_dump_json())
        self.plan = Plan(known.sweep, known.prepared, list(known.trials), known.num_planned)
        path = storage / sweep.name
        self.directory = SweepDirectory(path) if path.exists() else SweepDirectory.create(storage, sweep.name)
        self.past = read_past(self.directory)
        if self.past is not None:
            adopt(self.plan, self.past)
        self.todo = work(self.plan, self.past, retry_failed)
        self.lines = 0

    def to_the_end(
        self,
        train: Train = weight_trainer,
        at_once: int = 1,
        dies_after: float = math.inf,
        dies_before: bool = True,
    ) -> bool:
        """Whether it came to the end; False: it was killed."""
        with closing(MortalJournal(self.directory.journal)) as journal:
            journal.lines_left, journal.dies_before = dies_after, dies_before
            try:
                self._play(journal, train, at_once)
            except Killed:
                return False
        return True

    def _play(self, journal: MortalJournal, train: Train, at_once: int) -> None:
        sweep = self.plan.sweep
        content = sweep.model_dump(mode="json", exclude_unset=True)
        journal.event("start", sweep=content, experiment=content["experiment"], data=self.plan.prepared.facts)
        to_run = [trial.key for trial in self.todo.to_run]
        self.recorder = recorder = PopulationRecorder(self.plan, journal, past=self.past, to_run=to_run, directory=self.directory)
        searcher, started, number = PopulationSearcher(recorder), list[tuple[str, dict[str, Any]]](), 0
        while True:
            while len(started) < at_once:
                number += 1
                given = searcher.suggest(f"id{number}")
                if not isinstance(given, dict):
                    break
                recorder.started(f"id{number}")
                started.append((f"id{number}", given))
            if not started:
                assert given == "FINISHED", "everybody waits for somebody"
                break
            # The newest first: then a donor may train on before it was copied.
            trial_id, config = started.pop()
            segment = Segment(recorder.states[config["number"]].trial, config["until"], config["copied"])
            experiment = paused_after(self.plan.experiment(config["overrides"]), segment.until)
            trial = self.directory.trial(config["key"])
            trial.mkdir(parents=True, exist_ok=True)
            take(trial, experiment, segment.copied)
            status, reason = train(experiment, trial, lambda row, told=trial_id: recorder.row(told, row))  # type: ignore[misc]
            recorder.ended(trial_id, status, reason)
            searcher.on_trial_complete(trial_id)
        recorder.end_rest("failed", "nobody said why")
        journal.event("finish", status="completed")


def history(directory: SweepDirectory) -> dict[str, Any]:
    """What a sweep committed: rows, copies, how the trials ended; an epoch or a copy told twice is a mistake."""
    events = list(read_events(directory.journal))
    rows = [e for e in events if e["event"] == "row"]
    copies = [e for e in events if e["event"] == "population"]
    assert len({(r["trial"], r["epoch"]) for r in rows}) == len(rows), "an epoch was told twice"
    assert len({(c["trial"], c["generation"]) for c in copies}) == len(copies), "a copy was made twice"
    ends = {e["trial"]: (e["status"], e["reason"]) for e in events if e["event"] == "end"}
    timeless = [{k: v for k, v in e.items() if k not in ("time", "event")} for e in [*rows, *copies]]
    return {"events": sorted(timeless, key=lambda e: (e["epoch"], "overrides" in e, e["trial"])), "ends": ends}


def ran_after_their_end(directory: SweepDirectory) -> list[int]:
    """Trials that ran again although their end stood."""
    ended, again = set[int](), list[int]()
    for event in read_events(directory.journal):
        if event["event"] == "end":
            ended.add(event["trial"])
        elif event["event"] == "run" and event["trial"] in ended:
            again.append(event["trial"])
    return again

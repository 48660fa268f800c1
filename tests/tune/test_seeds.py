"""Configurations with several seeds, and contests: which trials there are, in which order, and the same after a kill. No Ray."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter, read_events
from raysweep.store.results import load
from raysweep.sweep_settings import SEED
from raysweep.tune import engine
from raysweep.tune.plan import make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import Work, found
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.search import LEARNING, searcher
from raysweep.tune.tuning import replayed

LRS = [1e-4, 1e-3, 1e-2, 1e-1]
Worth = Callable[[dict[str, Any]], float | None]


def sweep(epochs: int = 2, lrs: list[float] = LRS, scheduler: str = "none", **search: Any) -> Sweep:
    domain = {"grid": lrs} if search.get("algorithm", "grid") == "grid" else {"loguniform": [1e-4, 1e-1]}
    model = {"depth": 1, "base_channels": 2}
    experiment = {"data": {"source": "digits", "count": 50}, "model": model, "train": {"epochs": epochs, "seed": 7}}
    return Sweep.from_dict(
        {"name": "s", "experiment": experiment, "space": {"optim.lr": domain}, "search": search, "scheduler": {"name": scheduler}}
    )


class Killed(Exception):
    """The driver is gone."""


def played(settings: Sweep, storage: Path, worth: Worth, at_once: int = 1, kill_after: int | None = None, seed: int = 0) -> Work:
    """Run a sweep as the engine does, whose trials come out as `worth` says (None: it diverges); what was left to do.

    Args:
        settings: of the sweep.
        storage: where its directory lies.
        worth: of a trial's overrides.
        at_once: trials that run at a time; which of them ends next is drawn.
        kill_after: journal lines after which the driver dies.
        seed: of the draws.
    """
    plan, past, todo = found(settings, storage, False, False, lambda _text: None)
    if past is not None and not todo.to_run and len(plan.trials) >= plan.num_planned and not past.untold:
        return todo
    directory = past.directory if past else SweepDirectory.create(storage, settings.name)
    if past:
        past.directory.check_unchanged(past.size)
    draw, lines = random.Random(seed), 0

    class Journal(JournalWriter):
        def _append(self, content: Any, durable: bool) -> None:
            nonlocal lines
            lines += 1
            if kill_after is not None and lines > kill_after:
                raise Killed
            super()._append(content, durable)

    with closing(Journal(directory.journal)) as journal:
        content = plan.sweep.model_dump(mode="json", exclude_unset=True)
        journal.event("start", sweep=content, experiment={}, data=plan.prepared.facts)
        recorder = SweepRecorder(plan, journal, past=past, to_run=[t.key for t in todo.to_run])
        for decision in past.untold if past else ():
            recorder.decided(decision["trial"], {k: v for k, v in decision.items() if k != "trial"})
        search = searcher(plan, todo.to_run, recorder.assigned, recorder.objective, recorder)
        running: dict[str, dict[str, Any]] = {}
        number, is_over = 0, False
        while not is_over or running:
            while not is_over and len(running) < at_once:
                given = search.suggest(f"id{number}")
                if given is None:
                    assert running, "it waits, and nothing runs"
                    break
                if not isinstance(given, dict):
                    assert given == "FINISHED"
                    is_over = True
                    break
                running[f"id{number}"] = given
                recorder.started(f"id{number}")
                number += 1
            if running:
                name = draw.choice(list(running))
                finish(recorder, name, running.pop(name), worth, settings.experiment.train.epochs)
                search.on_trial_complete(name)
        assert all(state.has_ended for state in recorder.states.values())
        assert len(plan.trials) == plan.num_planned == len(recorder.states)
        assert not plan.has_contest
        journal.event("finish", status="completed")
    return todo


def finish(recorder: SweepRecorder, name: str, given: dict[str, Any], worth: Worth, epochs: int) -> None:
    value = worth(given["overrides"])
    for epoch in range(1, epochs + 1):
        loss = None if value is None else value * (1 + (epochs - epoch) / epochs)
        recorder.row(name, {"epoch": epoch, "val_loss": loss})
        if value is None:
            recorder.ended(name, "diverged", {"what": "val_loss"})
            return
    recorder.ended(name, "completed", {})


def lines(storage: Path, *names: str) -> list[dict[str, Any]]:
    return [e for e in read_events(storage / "s" / "journal.jsonl") if e["event"] in names]


def trained(storage: Path) -> list[tuple[float, int]]:
    """(lr, seed's number) of each trial that was begun, in order."""
    overrides = {e["trial"]: e["overrides"] for e in lines(storage, "trial")}
    return [(overrides[e["trial"]]["optim.lr"], overrides[e["trial"]].get(SEED, 7) - 7) for e in lines(storage, "run")]


def noisy(overrides: dict[str, Any], spread: float = 0.05) -> float:
    """Falls with lr, and changes a little with the seed: the same for the same trial."""
    draw = random.Random(json.dumps(overrides, sort_keys=True))
    return float(0.01 * 2 ** -math.log10(overrides["optim.lr"]) * (1 + spread * draw.uniform(-1, 1)))


# --- Seeds ------------------------------------------------------------------------------------------------------------


def test_one_seed_is_the_sweep_as_it_was() -> None:
    plan, seeds = make_plan(sweep()), make_plan(sweep(seeds=3))
    assert [t.overrides for t in plan.trials] == [{"optim.lr": lr} for lr in LRS]
    assert plan.num_planned == plan.num_configurations == 4
    assert seeds.trials[:4] == plan.trials, "the first seed of each keeps number and key"
    assert (seeds.num_planned, seeds.num_configurations) == (12, 4)
    assert [t.overrides for t in seeds.trials[4:]] == [{"optim.lr": lr, SEED: s} for s in (8, 9) for lr in LRS]
    assert len({t.key for t in seeds.trials}) == 12


def test_what_cannot_be_trained_has_one_row() -> None:
    content = {"experiment": {"data": {"source": "digits", "count": 50}}, "space": {"model.depth": {"grid": [1, 9]}}}
    plan = make_plan(Sweep.from_dict({**content, "search": {"seeds": 2}}))
    assert [bool(t.infeasible) for t in plan.trials] == [False, True, False]


def test_seeds_that_are_added_to_a_finished_sweep_are_all_that_is_trained(tmp_path: Path) -> None:
    played(sweep(), tmp_path, noisy)
    todo = played(sweep(seeds=3), tmp_path, noisy)
    assert (len(todo.done), len(todo.to_run)) == (4, 8)
    assert trained(tmp_path)[4:] == [(lr, s) for s in (1, 2) for lr in LRS]
    assert played(sweep(seeds=3), tmp_path, noisy).to_run == []
    assert len(trained(tmp_path)) == 12


@pytest.mark.parametrize("algorithm", ["random", "sobol"])
def test_samples_count_configurations(algorithm: str, tmp_path: Path) -> None:
    plan = make_plan(sweep(algorithm=algorithm, num_samples=5, seeds=2))
    assert (plan.num_planned, len(plan.trials)) == (10, 10)
    assert [t.overrides["optim.lr"] for t in plan.trials[:5]] == [t.overrides["optim.lr"] for t in plan.trials[5:]]


@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_search_that_learns_is_told_the_mean_of_all_seeds(algorithm: str, tmp_path: Path) -> None:
    settings = sweep(algorithm=algorithm, num_samples=6, seeds=3)
    played(settings, tmp_path, noisy, at_once=2)
    begun = trained(tmp_path)
    assert len(begun) == 18
    assert [s for _, s in begun] == [0, 1, 2] * 6, "the seeds of a configuration follow each other"
    assert len({lr for lr, _ in begun}) == 6
    plan, past, todo = found(sweep(algorithm=algorithm, num_samples=7, seeds=3), tmp_path, False, False, lambda _text: None)
    assert past is not None
    assert todo.to_run == []
    with closing(JournalWriter(tmp_path / "s" / "journal.jsonl")) as journal:
        recorder = SweepRecorder(plan, journal, past=past)
        search = searcher(plan, [], recorder.assigned, recorder.objective, recorder)
        study = search._inner._study
        assert len(study.trials) == 6, "one for each configuration"
        for told in study.trials:
            values = [noisy({"optim.lr": told.params["optim.lr"], **s}) for s in ({}, {SEED: 8}, {SEED: 9})]
            assert told.value == pytest.approx(sum(values) / 3)
        assert isinstance(search.suggest("more"), dict)


def test_a_search_that_learns_waits_for_a_configuration_that_is_not_whole(tmp_path: Path) -> None:
    settings = sweep(algorithm="tpe", num_samples=5, seeds=2)
    with pytest.raises(Killed):
        played(settings, tmp_path, noisy, kill_after=22)
    before = trained(tmp_path)
    played(settings, tmp_path, noisy)
    begun = trained(tmp_path)
    assert len(set(begun)) == 10
    assert len(begun) <= 11, "at most the trial in flight was begun twice"
    assert begun[: len(before)] == before


def test_more_seeds_for_a_finished_search_that_learns(tmp_path: Path) -> None:
    played(sweep(algorithm="tpe", num_samples=5), tmp_path, noisy)
    todo = played(sweep(algorithm="tpe", num_samples=5, seeds=2), tmp_path, noisy)
    assert len(todo.to_run) == 5
    assert [s for _, s in trained(tmp_path)] == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"seeds": 2}, "space": {SEED: {"grid": [0, 1]}}}, r"space\.train\.seed: search\.seeds 2 sets the seed"),
        ({"search": {"seeds": 2, "contenders": 3}}, "search.contenders 3 needs search.seeds of at least 3, got 2"),
        ({"search": {"seeds": 2}, "experiment": {"train": {"seed": 2**31 - 1}}}, r"is not below 2\*\*31"),
        ({"search": {"seeds": 3, "contenders": 1}}, "greater than or equal to 2"),
    ],
)
def test_settings_that_exclude_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sweep.from_dict({"space": {"optim.lr": {"grid": LRS}}, **changes})


# --- Contests ---------------------------------------------------------------------------------------------------------


def contest(storage: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if k != "time"} for e in lines(storage, "decision") if e["rule"] == "contenders"]


@pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
def test_first_seeds_come_first_and_only_the_best_get_more(algorithm: str, tmp_path: Path) -> None:
    samples = {} if algorithm == "grid" else {"num_samples": 4}
    played(sweep(algorithm=algorithm, seeds=6, contenders=2, **samples), tmp_path, noisy, at_once=3)
    begun = trained(tmp_path)
    assert [s for _, s in begun[:4]] == [0] * 4
    assert len({lr for lr, _ in begun[4:]}) == 2
    if algorithm == "grid":
        assert {lr for lr, _ in begun[4:]} == {1e-2, 1e-1}
        assert [run for run in begun if run[1]] == [(lr, s) for s in range(1, len(begun[4:]) // 2 + 1) for lr in (1e-1, 1e-2)]


def test_who_separates_gets_no_further_seed_and_the_journal_says_why(tmp_path: Path) -> None:
    played(sweep(seeds=12, contenders=3), tmp_path, lambda o: noisy(o, 0.02))
    begin, *drops = contest(tmp_path)
    assert begin["action"] == "contend"
    assert (begin["contenders"], begin["seeds"], begin["trial"]) == ([3, 2, 1], 12, 3)
    assert {d["trial"] for d in drops} == {1, 2}
    assert all(d["action"] == "drop" and d["p"] < d["level"] for d in drops)
    begun = trained(tmp_path)
    for drop in drops:
        assert sum(lr == LRS[drop["trial"]] for lr, _ in begun) == 1 + drop["round"]
    assert len(begun) < 4 + 3 * 11 / 2


def test_what_does_not_separate_gets_all_its_seeds(tmp_path: Path) -> None:
    played(sweep(seeds=4, contenders=2), tmp_path, lambda o: 0.1 + (o.get(SEED, 7) * 37 + LRS.index(o["optim.lr"]) * 11) % 5)
    assert [e["action"] for e in contest(tmp_path)] == ["contend"]
    assert [s for _, s in trained(tmp_path)] == [0] * 4 + [1, 1, 2, 2, 3, 3]


def test_a_contender_that_diverges_with_a_seed_is_dropped(tmp_path: Path) -> None:
    played(sweep(seeds=4, contenders=2), tmp_path, lambda o: None if (o["optim.lr"], o.get(SEED)) == (1e-1, 8) else noisy(o))
    drop = contest(tmp_path)[-1]
    assert (drop["trial"], drop["round"], drop["p"]) == (3, 1, None)
    assert len(trained(tmp_path)) == 6


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_contest_that_is_cut_anywhere_goes_on_as_if_it_had_not_been(at_once: int, tmp_path: Path) -> None:
    settings = sweep(seeds=6, contenders=3)
    whole = tmp_path / "whole"
    played(settings, whole, lambda o: noisy(o, 0.02), at_once)
    assert [e["action"] for e in contest(whole)] == ["contend", "drop", "drop"]
    total = sum(1 for _ in read_events(whole / "s" / "journal.jsonl"))
    draw = random.Random(at_once)
    for cut in sorted(draw.sample(range(3, total), 6)):
        storage = tmp_path / f"cut{cut}"
        with pytest.raises(Killed):
            played(settings, storage, lambda o: noisy(o, 0.02), at_once, kill_after=cut)
        played(settings, storage, lambda o: noisy(o, 0.02), at_once)
        assert contest(storage) == contest(whole), f"cut after {cut} lines"
        assert set(trained(storage)) == set(trained(whole))
        assert len(trained(storage)) <= len(trained(whole)) + at_once
        rows = [(e["trial"], e["epoch"]) for e in lines(storage, "row")]
        assert len(set(rows)) == len(rows)
        assert played(settings, storage, noisy).to_run == []


def test_a_decision_that_was_not_written_any_more_is_written_by_the_next_start(tmp_path: Path) -> None:
    settings = sweep(seeds=6, contenders=2)
    played(settings, tmp_path, lambda o: noisy(o, 0.001))
    journal = tmp_path / "s" / "journal.jsonl"
    content, decided = journal.read_bytes(), contest(tmp_path)
    assert decided[-1]["action"] == "drop"
    journal.write_bytes(content[: content.rindex(b'{"event":"decision"')])
    todo = played(settings, tmp_path, noisy)
    assert todo.to_run == []
    assert contest(tmp_path) == decided


def test_a_contest_over_more_configurations_trains_none_of_the_old_seeds_again(tmp_path: Path) -> None:
    played(sweep(seeds=5, contenders=2), tmp_path, noisy)
    before = trained(tmp_path)
    played(sweep(lrs=[*LRS, 1e-5], seeds=5, contenders=3), tmp_path, noisy)
    after = trained(tmp_path)
    assert len(after) == len(set(after))
    assert after[: len(before)] == before
    assert {lr for lr, s in after[len(before) :] if s} <= {1e-3, 1e-2, 1e-1}
    begins = [e for e in contest(tmp_path) if e["action"] == "contend"]
    assert [len(e["contenders"]) for e in begins] == [2, 3]


def test_more_epochs_go_on_with_the_trials_of_a_contest(tmp_path: Path) -> None:
    played(sweep(seeds=4, contenders=2), tmp_path, noisy)
    before = len(trained(tmp_path))
    played(sweep(epochs=4, seeds=4, contenders=2), tmp_path, noisy)
    assert len(trained(tmp_path)) == 2 * before
    rows = [(e["trial"], e["epoch"]) for e in lines(tmp_path, "row")]
    assert len(rows) == len(set(rows)) == 4 * before, "the first two epochs were not trained again"
    assert played(sweep(epochs=4, seeds=4, contenders=2), tmp_path, noisy).to_run == []


def test_a_search_that_learns_has_its_contest_after_points_to_start_with(tmp_path: Path) -> None:
    settings = sweep(algorithm="tpe", num_samples=4, start_with=[{"optim.lr": 1e-3}], seeds=3, contenders=2)
    played(settings, tmp_path, noisy)
    assert [s for _, s in trained(tmp_path)] == [0] * 4 + [1, 1, 2, 2]


def test_one_configuration_has_no_contest(tmp_path: Path) -> None:
    played(sweep(algorithm="tpe", num_samples=1, seeds=3, contenders=2), tmp_path, noisy)
    assert len(trained(tmp_path)) == 1
    assert contest(tmp_path) == []


def test_a_scheduler_never_sees_the_seeds_of_a_contest(tmp_path: Path) -> None:
    settings = sweep(epochs=4, seeds=4, contenders=2, scheduler="asha")
    played(settings, tmp_path, noisy)
    plan, past, todo = found(settings, tmp_path, False, False, lambda _text: None)
    assert past is not None
    keys = {trial.key for trial in plan.trials[:4]}
    with closing(JournalWriter(tmp_path / "s" / "journal.jsonl")) as journal:
        recorder = SweepRecorder(plan, journal, past=past)
        scheduler = RecordingScheduler(plan.sweep, recorder)
        replayed(plan, past, todo, scheduler, recorder)

        class Live:
            status, trial_id = "RUNNING", "id"
            config = {"key": "new", "overrides": {"optim.lr": 1e-1, SEED: 10}}

        live = Live()
        recorder.assigned("id", replace(plan.trials[3], number=99, key="new"))
        scheduler.on_trial_add(None, live)
        row = {"epoch": 1, "val_loss": 9.0}
        assert scheduler.on_trial_result(None, live, {**row, "row": json.dumps(row)}) == "CONTINUE"
        scheduler.on_trial_complete(None, live, {})
        scheduler.on_trial_remove(None, live)
    (bracket,) = scheduler._inner._brackets
    for _, recorded in bracket._rungs:
        assert set(recorded) <= keys
    assert set(bracket._rungs[-1][1]) == keys


def test_a_trial_of_an_old_contest_that_runs_again_has_not_ended(tmp_path: Path) -> None:
    played(sweep(seeds=4, contenders=2), tmp_path, noisy)
    plan, past, _ = found(sweep(epochs=4, seeds=4, contenders=2), tmp_path, False, False, lambda _text: None)
    assert past is not None
    with closing(JournalWriter(tmp_path / "s" / "journal.jsonl")) as journal:
        recorder = SweepRecorder(plan, journal, past=past, to_run=[t.key for t in plan.trials[:4]])
        further = plan.add({"optim.lr": 1e-1, SEED: 8})
        assert further is not None
        assert further.number == past.trials[further.key].number
        assert recorder.known(further) is None, "it has epochs to add"
        recorder.assigned("id", further)
        assert (recorder.states[further.number].status, recorder.states[further.number].epoch) == ("waiting", 2)


def test_a_finished_sweep_is_given_a_contest(tmp_path: Path) -> None:
    played(sweep(), tmp_path, noisy)
    played(sweep(seeds=4, contenders=2), tmp_path, noisy)
    assert trained(tmp_path)[:4] == [(lr, 0) for lr in LRS]
    assert all(s for _, s in trained(tmp_path)[4:])


@pytest.mark.parametrize(("seeds", "further"), [(3, "2"), (5, "2 to 4")])
def test_how_many_further_seeds_a_contest_may_give_is_said(seeds: int, further: str) -> None:
    assert make_plan(sweep(seeds=seeds, contenders=2)).notes[-1] == f"the best 2 configurations get {further} further seeds"


def test_the_best_may_be_a_trial_that_the_plan_no_longer_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(sweep(seeds=2), tmp_path, noisy)
    narrower = sweep(lrs=LRS[:2], seeds=2)
    plan, past, _ = found(narrower, tmp_path, False, False, lambda _text: None)
    assert past is not None
    best = load(past.directory.path).best
    assert best is not None
    assert best["lr"] == LRS[-1], "which is not in the narrower sweep"
    written: list[Path] = []
    monkeypatch.setattr(engine, "write_examples", lambda directory, _prepared: written.append(directory))
    with closing(JournalWriter(past.directory.journal)) as journal:
        recorder = SweepRecorder(plan, journal, past=past)
        engine._write_best_examples(plan, recorder, past.directory, lambda _text: None)
    (directory,) = written
    assert directory.name in {trial.key for trial in plan.trials if trial.overrides["optim.lr"] == LRS[1]}

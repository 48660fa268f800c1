"""A searcher and a scheduler of the user's own: found, checked, shown what is known, and never the end of what was trained."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysweep.config import Budget, Sweep
from raysweep.errors import ConfigError
from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter, read_events
from raysweep.store.results import describe_end
from raysweep.tune.callback import SweepEnd
from raysweep.tune.own import OwnCodeError, raise_fault
from raysweep.tune.plan import Plan, make_plan
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.resume import adopt, read_past, work
from raysweep.tune.schedulers import RecordingScheduler
from raysweep.tune.search import searcher

CODE = """
SEEN = []

class Search:
    def __init__(self, space, points=(), fails=False):
        self.space, self.points, self.fails = space, list(points), fails
    def suggest(self, known):
        SEEN.append([(t.overrides["model.depth"], t.value, t.status) for t in known])
        if self.fails:
            raise KeyError("mistake")
        if not self.points:
            raise StopIteration
        return self.points[min(len(known), len(self.points) - 1)]

def search(space, mode, seed, **params):
    return Search(space, **params)

class Rule:
    def __init__(self, answers):
        self.answers, self.asked = answers, []
    def decide(self, key, epoch, value):
        self.asked.append((key, epoch, value))
        answer = self.answers.get(epoch)
        if answer == "raise":
            raise ZeroDivisionError("mistake")
        return answer

def rule(mode, epochs, answers=None):
    return Rule(answers or {})

def nothing(**given):
    return 3

number = 3
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "owncode.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("owncode", None)
    import owncode  # type: ignore[import-not-found]

    yield owncode
    sys.modules.pop("owncode", None)


def sweep(points: list[Any] | None = None, answers: dict[int, Any] | None = None, **changes: Any) -> Sweep:
    tree = {
        "name": "s",
        "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 5}},
        "space": {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.depth": {"choice": [1, 2, 3]}},
        "search": {"algorithm": "owncode:search", "params": {"points": points or []}, "num_samples": 4, **changes},
        "scheduler": {"name": "owncode:rule", "params": {"answers": answers or {}}},
    }
    return Sweep.from_dict(tree)


def point(depth: Any, lr: Any = 1e-3) -> dict[str, Any]:
    return {"optim.lr": lr, "model.depth": depth}


class Run:
    """A plan, its recorder and its searcher."""

    def __init__(self, directory: SweepDirectory, settings: Sweep) -> None:
        self.plan = make_plan(settings)
        past = read_past(directory)
        if past:
            adopt(self.plan, past)
        todo = work(self.plan, past, False)
        self.journal = JournalWriter(directory.journal)
        content = settings.model_dump(mode="json", exclude_unset=True)
        self.journal.event("start", sweep=content, experiment={}, data=self.plan.prepared.facts)
        self.recorder = SweepRecorder(self.plan, self.journal, past=past, to_run=[t.key for t in todo.to_run])
        self.search = searcher(self.plan, todo.to_run, self.recorder.assigned, self.recorder.objective)

    def end(self, name: str, loss: float | None) -> None:
        self.recorder.started(name)
        self.recorder.row(name, {"epoch": 5, "val_loss": loss})
        self.recorder.ended(name, "completed", {})
        self.search.on_trial_complete(name)


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    return SweepDirectory.create(tmp_path, "s")


def test_a_searcher_is_shown_what_came_out_and_after_a_restart_again(directory: SweepDirectory, code: Any) -> None:
    points = [point(1), point(2), point(3), point(1, 1e-2)]
    first = Run(directory, sweep(points))
    with closing(first.journal):
        assert first.search.suggest("a")["overrides"] == point(1)
        first.end("a", 0.5)
        assert first.search.suggest("b")["overrides"] == point(2)
        assert first.search.suggest("c")["overrides"] == point(3)
        first.end("b", None)
    assert code.SEEN == [[], [(1, 0.5, "ended")], [(1, 0.5, "ended"), (2, None, "running")]]
    code.SEEN.clear()
    second = Run(directory, sweep(points))
    with closing(second.journal):
        again = second.search.suggest("a")
        assert (again["number"], again["overrides"]) == (2, point(3)), "what was begun comes first"
        assert second.search.suggest("b")["overrides"] == point(1, 1e-2)
        assert code.SEEN == [[(1, 0.5, "ended"), (2, None, "ended"), (3, None, "running")]]
        assert second.search.suggest("c") == "FINISHED", "search.num_samples"


def test_repeats_waiting_and_the_end_of_ideas_end_the_search_with_a_note(directory: SweepDirectory) -> None:
    run = Run(directory, sweep([point(1), point(1)]))
    with closing(run.journal):
        run.search.suggest("a")
        assert run.search.suggest("b") == "FINISHED"
    assert run.plan.num_planned == 1
    assert "its last 50 points were known already" in run.plan.notes[-1]
    run = Run(SweepDirectory.create(directory.path, "t"), sweep([point(1), None]))
    with closing(run.journal):
        run.search.suggest("a")
        assert run.search.suggest("b") is None, "a trial runs that it can wait for"
        run.end("a", 0.5)
        assert run.search.suggest("b") == "FINISHED"
    assert "it waits, and no trial runs" in run.plan.notes[-1]
    run = Run(SweepDirectory.create(directory.path, "u"), sweep([]))
    with closing(run.journal):
        assert run.search.suggest("a") == "FINISHED"
    assert "it has no other point" in run.plan.notes[-1]
    assert run.search.fault is None


def test_a_point_that_cannot_be_trained_is_a_row_and_is_shown(
    directory: SweepDirectory, code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sweep([point(1), point(2), point(3)])
    real = Plan.add

    def add(plan: Plan, overrides: dict[str, Any]) -> Any:
        if overrides["model.depth"] == 2:
            raise ConfigError("too deep for the images")
        return real(plan, overrides)

    monkeypatch.setattr(Plan, "add", add)
    run = Run(directory, settings)
    with closing(run.journal):
        run.search.suggest("a")
        assert run.search.suggest("b")["overrides"] == point(3)
    assert code.SEEN[-1] == [(1, None, "running"), (2, None, "infeasible")]
    ends = [(e["trial"], e["status"]) for e in read_events(directory.journal) if e["event"] == "end"]
    assert ends == [(1, "infeasible")]
    again = Run(directory, settings)
    again.journal.close()
    assert [t.infeasible for t in again.plan.trials] == ["", "too deep for the images", ""]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (point(4), "model.depth: 4 is not in 1, 2, 3"),
        (point(1, 1.0), "optim.lr: 1.0 is not in 1e-05 .. 0.1 (log)"),
        (point(1, float("nan")), "optim.lr: None is not in"),
        (point(True), "model.depth: True is not in"),
        ({"optim.lr": 1e-3}, "model.depth is missing"),
        ({**point(1), "model.dropout": 0.1}, "model.dropout is not in the space"),
        (7, "it must return a mapping with a value for each key of the space"),
    ],
)
def test_a_point_outside_the_space_ends_the_sweep_with_a_message(directory: SweepDirectory, bad: Any, message: str) -> None:
    run = Run(directory, sweep([]))
    run.search._own.points = [bad]
    with closing(run.journal):
        assert run.search.suggest("a") == "FINISHED"
        with pytest.raises(OwnCodeError) as caught:
            raise_fault(run.search)
    assert "search.algorithm owncode:search: suggest() returned" in str(caught.value)
    assert message in str(caught.value)


def test_an_error_of_the_searcher_ends_the_sweep_and_has_its_traceback(directory: SweepDirectory, code: Any) -> None:
    run = Run(directory, sweep([]))
    run.search._own.fails = True
    end = SweepEnd(Budget(), run.recorder, fault=lambda: run.search.fault)
    with closing(run.journal):
        assert not end.stop_all()
        assert run.search.suggest("a") == "FINISHED"
        assert run.search.suggest("b") == "FINISHED"
        assert end.stop_all()
    assert len(code.SEEN) == 1, "it is asked no more"
    assert end.reason == "interrupted"
    with pytest.raises(
        OwnCodeError, match=r"raised KeyError: 'mistake' \(owncode.py, line 10\).*the same command goes on"
    ) as caught:
        raise_fault(run.search)
    assert "in suggest" in caught.value.traceback_text


# --- Schedulers -------------------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.decisions: list[dict[str, Any]] = []

    def row(self, trial_id: str, row: dict[str, Any]) -> bool:
        return True

    def happened(self, trial_id: str, event: dict[str, Any]) -> None:
        raise AssertionError

    def decision(self, trial_id: str, decision: dict[str, Any]) -> None:
        self.decisions.append(decision)

    def ended(self, trial_id: str, status: str, reason: dict[str, Any]) -> None:
        self.end = (trial_id, status, reason)


class Live:
    status = "RUNNING"

    def __init__(self, key: str) -> None:
        self.trial_id, self.config = f"id-{key}", {"key": key}


def report(scheduler: RecordingScheduler, live: Live, epoch: int, loss: float | None) -> str:
    row = {"epoch": epoch, "val_loss": loss}
    return scheduler.on_trial_result(None, live, {"row": json.dumps(row), **row})


def test_a_schedulers_answers_become_decisions_with_their_reasons() -> None:
    told = Told()
    answers = {2: {"rung": 2, "cutoff": 0.25, "rule": "not yours to say"}, 3: "it is late", 5: "last"}
    scheduler = RecordingScheduler(sweep(answers=answers), told)
    assert report(scheduler, Live("a"), 1, 0.5) == "CONTINUE"
    assert report(scheduler, Live("a"), 2, 0.5) == "STOP"
    common = {"action": "stop", "rule": "owncode:rule", "metric": "val_loss", "value": 0.5}
    assert told.decisions == [{**common, "epoch": 2, "rung": 2, "cutoff": 0.25}]
    assert report(scheduler, Live("b"), 3, 0.5) == "STOP"
    assert told.decisions[1] == {**common, "epoch": 3, "text": "it is late"}
    assert describe_end({"status": "stopped", "reason": told.end[2]}) == "owncode:rule: at epoch 3, it is late"
    assert report(scheduler, Live("c"), 5, 0.5) == "CONTINUE", "the last epoch is an end of its own"
    assert report(scheduler, Live("d"), 3, None) == "CONTINUE", "so is a divergence"
    assert scheduler._inner._own.asked[-1] == ("d", 3, None)


def test_after_a_restart_a_scheduler_is_asked_the_same_again() -> None:
    answers = {2: "stop"}
    scheduler = RecordingScheduler(sweep(answers=answers), Told())
    told: list[Any] = [("a", {"epoch": 1, "val_loss": 0.5}), ("b", {"epoch": 1, "val_loss": None}), ("b", None),
                       ("a", {"epoch": 2, "val_loss": 0.4})]  # fmt: skip
    stops = scheduler.replay(told, {"a": "", "b": "diverged"})
    assert scheduler._inner._own.asked == [("a", 1, 0.5), ("b", 1, None), ("a", 2, 0.4)]
    assert stops["a"]["text"] == "stop", "a stop that the journal does not have yet is found again"
    report(scheduler, Live("c"), 1, 0.3)
    assert scheduler._inner._own.asked[3:] == [("c", 1, 0.3)]


@pytest.mark.parametrize(("answer", "message"), [("raise", "raised ZeroDivisionError: mistake"), (7, "decide() returned 7")])
def test_a_schedulers_error_stops_no_trial_and_ends_the_sweep(answer: Any, message: str) -> None:
    told = Told()
    scheduler = RecordingScheduler(sweep(answers={1: answer}), told)
    assert scheduler.fault is None
    assert report(scheduler, Live("a"), 1, 0.5) == "CONTINUE"
    assert report(scheduler, Live("b"), 1, 0.5) == "CONTINUE"
    assert told.decisions == []
    assert len(scheduler._inner._own.asked) == 1
    with pytest.raises(OwnCodeError) as caught:
        raise_fault(scheduler)
    assert message in str(caught.value)


# --- Before anything starts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "scheduler", "message"),
    [
        ({"algorithm": "nowhere:make"}, {}, "search.algorithm nowhere:make: cannot import nowhere"),
        ({"algorithm": "owncode:none"}, {}, "search.algorithm owncode:none: owncode has no none"),
        ({"algorithm": "owncode:number"}, {}, "number is a int, it must be a function or a class"),
        ({"algorithm": "owncode:nothing"}, {}, "must return an object with a method suggest(), it returned a int"),
        ({"algorithm": "owncode:search", "params": {"x": 1}}, {}, "called with space, mode, seed, x=1 it raised TypeError"),
        ({"algorithm": "owncode:search", "params": {"seed": 1}}, {}, "search.params.seed: raysweep itself gives"),
        ({}, {"name": "owncode:nothing"}, "must return an object with a method decide(), it returned a int"),
        ({}, {"name": "owncode:rule", "params": {"answers": {}, "y": 2}}, "called with mode, epochs, answers={}, y=2"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(
    search: dict[str, Any], scheduler: dict[str, Any], message: str
) -> None:
    tree = {
        "experiment": {"data": {"source": "digits", "count": 50}, "train": {"epochs": 5}},
        "space": {"model.depth": {"choice": [1, 2]}},
        "search": {"algorithm": "random", **search},
        "scheduler": scheduler,
    }
    with pytest.raises(ConfigError) as caught:
        make_plan(Sweep.from_dict(tree))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"search": {"algorithm": "tpee"}}, "search.algorithm: Input should be 'grid', 'random'"),
        ({"search": {"algorithm": "not a:factory"}}, "search.algorithm: Input should be 'grid'"),
        ({"scheduler": {"name": "ashaa"}}, "scheduler.name: Input should be 'none', 'asha'"),
        ({"search": {"params": {"a": 1}}}, "search: params are for a factory of your own, algorithm is grid"),
        ({"scheduler": {"params": {"a": 1}}}, "scheduler: params are for a factory of your own, name is none"),
    ],
)
def test_names_keep_their_messages(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sweep.from_dict({"space": {"model.depth": {"grid": [1, 2]}}, **section})
    assert message in str(caught.value)


def test_the_schema_knows_names_and_factories() -> None:
    schema = Sweep.model_json_schema()
    names, factory = schema["$defs"]["SearchConfig"]["properties"]["algorithm"]["anyOf"]
    assert "tpe" in names["enum"]
    assert factory["pattern"].startswith("^")
    content = sweep([point(1)]).model_dump(mode="json", exclude_unset=True)
    assert content["search"]["algorithm"] == "owncode:search"
    assert Sweep.from_dict(content) == sweep([point(1)])

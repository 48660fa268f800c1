"""Population-based training: one curve a member, the same copies whatever is killed, and keys of their own. No Ray cluster."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from population_sweeps import Run, history, ran_after_their_end, settings, weight_trainer
from rich.console import Console

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.store.journal import JournalWriter, read_events
from raysweep.store.results import load
from raysweep.train import checkpoint
from raysweep.train.optim import learning_rate
from raysweep.tune.population import PopulationRecorder, paused_after
from raysweep.tune.preview import preview


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """What a killed process has written is there, whether or not it was forced to the disk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(settings(), tmp_path_factory.mktemp("whole"))
    assert run.to_the_end()
    return run


def events(run: Run, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run.directory.journal) if event["event"] == name]


def test_a_population_trains_its_epochs_once_and_the_worst_copy_the_best(whole: Run) -> None:
    found = load(whole.directory.path)
    assert list(found.trials["status"]) == ["completed"] * 5
    copies = found.population
    assert list(copies["epoch"].unique()) == [2, 4], "not after the last generation"
    assert list(copies["generation"].unique()) == [1, 2]
    losses = {(r["trial"], r["epoch"]): r["val_loss"] for r in events(whole, "row")}
    for copy in copies.to_dict("records"):
        values = {n: losses.get((n, copy["epoch"])) for n in range(5)}
        finite = sorted(v for v in values.values() if v is not None)
        assert values[copy["from"]] in finite[:2]
        assert values[copy["trial"]] is None or values[copy["trial"]] in finite[-2:]
    assert found.rows["val_loss"].isna().sum() >= 1, "somebody diverged on the way"
    assert len(events(whole, "run")) == 5, "a segment is no attempt"
    assert len(events(whole, "end")) == 5, "and its end is no end"


def test_a_members_rows_go_on_with_the_weights_and_the_optimizer_of_whom_it_copied(whole: Run, tmp_path: Path) -> None:
    """A copy trains as the donor would have trained with the new settings: played again by hand."""
    copies, rows = events(whole, "population"), {(r["trial"], r["epoch"]): r for r in events(whole, "row")}
    number, chain = copies[-1]["trial"], list[tuple[int, dict[str, Any]]]()
    trial, until = number, 5
    while True:
        earlier = [c for c in copies if c["trial"] == trial and c["epoch"] < until]
        planned = next(t.overrides for t in whole.plan.trials if t.number == trial)
        chain.insert(0, (until, earlier[-1]["overrides"] if earlier else planned))
        if not earlier:
            break
        trial, until = earlier[-1]["from"], earlier[-1]["epoch"]
    assert len(chain) > 1
    told: list[dict[str, Any]] = []
    for until, overrides in chain:
        experiment = whole.plan.experiment({**overrides, "train.epochs": until})
        for path in tmp_path.glob("ckpt-*.pt"):
            content = checkpoint.load(path)
            for group in content["optimizer"]["param_groups"]:
                group["lr"], group["momentum"] = experiment.optim.lr, experiment.optim.momentum
            checkpoint.save_numbered(tmp_path, content["progress"]["global_step"], content)
        weight_trainer(experiment, tmp_path, told.append)
    assert told[-1]["val_loss"] == rows[(number, 5)]["val_loss"]


def test_a_driver_killed_at_any_line_of_its_journal_changes_nothing(whole: Run, tmp_path: Path) -> None:
    lines = whole.directory.journal.read_bytes().count(b"\n")
    told = history(whole.directory)
    assert lines > 40
    for line in range(lines):
        storage = tmp_path / str(line)
        storage.mkdir()
        assert not Run(settings(), storage).to_the_end(dies_after=line, dies_before=line % 2 == 0)
        again = Run(settings(), storage)
        assert again.to_the_end()
        assert history(again.directory) == told, f"killed at line {line}"
        assert ran_after_their_end(again.directory) == []


@pytest.mark.parametrize("steps", [8, 13, 21])
def test_a_driver_killed_again_and_again_with_three_at_a_time_changes_nothing(whole: Run, tmp_path: Path, steps: int) -> None:
    kills = 0
    while not (run := Run(settings(), tmp_path)).to_the_end(at_once=3, dies_after=steps):
        kills += 1
        assert kills < 200
    assert kills >= 2
    assert history(run.directory) == history(whole.directory)
    assert ran_after_their_end(run.directory) == []


def test_the_number_at_a_time_changes_nothing(whole: Run, tmp_path: Path) -> None:
    run = Run(settings(), tmp_path)
    assert run.to_the_end(at_once=4)
    assert history(run.directory) == history(whole.directory)


@pytest.mark.parametrize("shorter", [3, 4])
def test_more_epochs_extend_a_population(whole: Run, tmp_path: Path, shorter: int) -> None:
    first = Run(settings(epochs=shorter), tmp_path)
    assert first.to_the_end()
    assert [t.key for t in first.plan.trials] == [t.key for t in whole.plan.trials], "the budget is in no key"
    again = Run(settings(), tmp_path)
    assert again.to_the_end()
    assert history(again.directory)["events"] == history(whole.directory)["events"]
    assert {n: e[0] for n, e in history(again.directory)["ends"].items()} == dict.fromkeys(range(5), "completed")


def test_a_driver_killed_while_it_extends_a_population_changes_nothing(whole: Run, tmp_path: Path) -> None:
    """Who diverged in the last generation of the shorter sweep had ended, and lives on by its copy."""
    short = tmp_path / "short"
    short.mkdir()
    assert Run(settings(epochs=3), short).to_the_end()
    assert "diverged" in list(load(short / "s").trials["status"])
    for line in range(30):
        storage = tmp_path / str(line)
        shutil.copytree(short, storage)
        Run(settings(), storage).to_the_end(dies_after=line)
        again = Run(settings(), storage)
        assert again.to_the_end()
        assert history(again.directory)["events"] == history(whole.directory)["events"], f"killed at line {line}"
        assert list(load(again.directory.path).trials["status"]) == ["completed"] * 5


def test_what_was_copied_stays_until_the_journal_has_the_next_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's copy may be a generation behind: what the journal told last must be there to be sent."""
    append, there = JournalWriter._append, list[list[str]]()

    def looks(journal: JournalWriter, content: Any, durable: bool) -> None:
        if content.get("event") == "population":
            folder = run.directory.trial(run.plan.trials[content["trial"]].key)
            there.append(sorted(path.name for path in folder.glob("clone-*")))
        append(journal, content, durable)

    monkeypatch.setattr(JournalWriter, "_append", looks)
    run = Run(settings(epochs=9), tmp_path)
    assert run.to_the_end()
    again = [names for names in there if len(names) > 1]
    assert again
    assert all(len(names) <= 2 for names in there)
    last = {c["trial"]: c["generation"] for c in events(run, "population")}
    assert {path.parent.name: path.name for path in run.directory.path.glob("trials/*/clone-*")} == {
        run.plan.trials[number].key: f"clone-{generation}" for number, generation in last.items()
    }


def killed_before_the_first_copy(whole: Run, storage: Path) -> Run:
    told = [event["event"] for event in read_events(whole.directory.journal)]
    run = Run(settings(), storage)
    assert not run.to_the_end(dies_after=told.index("population"))
    assert [e["event"] for e in read_events(run.directory.journal)] == told[: told.index("population")]
    return run


def test_members_whose_files_are_gone_train_the_generation_again_before_they_are_copied(whole: Run, tmp_path: Path) -> None:
    run = killed_before_the_first_copy(whole, tmp_path)
    shutil.rmtree(run.directory.path / "trials")
    again = Run(settings(), tmp_path)
    assert again.to_the_end(at_once=2)
    assert history(again.directory) == history(whole.directory)
    for trial in whole.plan.trials:
        best, expected = (checkpoint.load(r.directory.trial(trial.key) / "best.pt") for r in (again, whole))
        assert (best["val_loss"], best["epoch"]) == (expected["val_loss"], expected["epoch"])


def test_a_donor_that_loses_its_checkpoint_again_is_named(whole: Run, tmp_path: Path) -> None:
    killed_before_the_first_copy(whole, tmp_path)

    def loses(experiment: Experiment, directory: Path, tell: Any) -> tuple[str, dict[str, Any]]:
        weight_trainer(experiment, directory, tell)
        for path in directory.glob("ckpt-*"):
            path.unlink()
        return "failed", {"text": "its disk is gone"}

    for path in tmp_path.glob("s/trials/*/ckpt-*"):
        path.unlink()
    donor = events(whole, "population")[0]["from"]
    with pytest.raises(CheckpointError, match=rf"trial {donor} is among the best after epoch 2, .* --retry-failed trains it"):
        Run(settings(), tmp_path).to_the_end(loses)
    again = Run(settings(), tmp_path, retry_failed=True)
    assert again.to_the_end()
    assert history(again.directory)["events"] == history(whole.directory)["events"]


def test_again_there_is_nothing_to_do(whole: Run) -> None:
    assert Run(settings(), whole.directory.path.parent).todo.to_run == []


def test_a_member_that_diverged_copies_and_lives_on(tmp_path: Path) -> None:
    space = {"optim.lr": {"grid": [1e-4, 1e-3, 1e-2, 0.09]}}
    base = settings(space=space, quantile=0.25)
    run = Run(
        base.model_copy(update={"search": base.search.model_copy(update={"algorithm": "grid", "num_samples": None})}), tmp_path
    )
    assert run.to_the_end()
    found = load(run.directory.path)
    assert list(found.trials["status"]) == ["completed"] * 4
    rows = found.rows[found.rows["trial"] == 3]
    assert list(rows["epoch"]) == [1, 2, 3, 5], "it diverged in the third, and goes on after the generation's fourth"
    assert rows["val_loss"].isna().sum() == 1
    assert 3 in set(found.population["trial"])


def test_where_everybody_has_diverged_the_sweep_ends(tmp_path: Path) -> None:
    def explode(experiment: Experiment, directory: Path, tell: Any) -> tuple[str, dict[str, Any]]:
        tell({"epoch": 1, "step": 9, "train_loss": None, "val_loss": None, "lr": 0.5})
        return "diverged", {"what": "train_loss", "step": 8, "lr": 0.5}

    run = Run(settings(), tmp_path)
    assert run.to_the_end(explode)
    found = load(run.directory.path)
    assert list(found.trials["status"]) == ["diverged"] * 5
    assert found.trials.loc[0, "reason"] == "train_loss was not finite at step 9, lr 0.5"
    assert found.population.empty


@pytest.mark.parametrize("member", range(5))
def test_a_member_that_fails_leaves_the_population(tmp_path: Path, member: int) -> None:
    broken = [True]

    def fails(experiment: Experiment, directory: Path, tell: Any) -> tuple[str, dict[str, Any]]:
        if broken[0] and directory.name == victim and experiment.train.epochs == 4:
            return "failed", {"text": "what the user did wrong"}
        return weight_trainer(experiment, directory, tell)

    run = Run(settings(seed=3), tmp_path)
    victim = run.plan.trials[member].key
    assert run.to_the_end(fails)
    before = history(run.directory)
    assert [s for s, _ in before["ends"].values()].count("failed") == 1
    assert all(member not in (e["trial"], e.get("from")) for e in before["events"] if "overrides" in e and e["generation"] > 1)
    assert Run(settings(seed=3), tmp_path).todo.to_run == []

    broken[0] = False
    again = Run(settings(seed=3), tmp_path, retry_failed=True)
    assert again.to_the_end(fails)
    after = history(again.directory)
    assert after["ends"][member] == ("completed", {})
    others = [e for e in after["events"] if e["trial"] != member]
    assert others == [e for e in before["events"] if e["trial"] != member], "the others' copies stand"


def test_a_lost_process_is_an_attempt_and_its_next_segment_none(tmp_path: Path) -> None:
    run = Run(settings(), tmp_path)
    with closing(JournalWriter(run.directory.journal)) as journal:
        recorder = PopulationRecorder(run.plan, journal, directory=run.directory)
        for trial_id, attempts in (("first", 1), ("first", 2), ("next segment", 2), ("next segment", 3)):
            recorder.assigned(trial_id, run.plan.trials[0])
            recorder.started(trial_id)
            assert recorder.states[0].attempts == attempts
            assert recorder.states[0].status == "running"


def test_whom_the_others_wait_for_may_have_all_workers(tmp_path: Path) -> None:
    left: list[int] = []

    def trains(experiment: Experiment, directory: Path, tell: Any) -> tuple[str, dict[str, Any]]:
        left.append(run.recorder.num_left())
        return weight_trainer(experiment, directory, tell)

    run = Run(settings(), tmp_path)
    assert run.to_the_end(trains, at_once=2)
    assert left == [5, 4, 3, 2, 1] * 3
    assert run.recorder.num_left() == 0


def test_the_table_shows_the_settings_that_a_member_has_now(whole: Run) -> None:
    copies = events(whole, "population")
    last = {copy["trial"]: copy["overrides"] for copy in copies}
    for number, overrides in last.items():
        assert whole.recorder.states[number].trial.overrides == overrides
    assert whole.plan.trials[copies[0]["trial"]].overrides != copies[0]["overrides"], "the plan keeps what they began with"


@pytest.mark.parametrize("horizon", [None, 9])
def test_a_pause_changes_no_learning_rate(horizon: int | None) -> None:
    optimizer = {"schedule": "cosine", "schedule_epochs": horizon, "warmup_steps": 3}
    whole = Experiment.from_dict({"optim": optimizer, "train": {"epochs": 6}})
    for until in (2, 4, 6):
        part = paused_after(whole, until)
        assert part.train.epochs == until
        for step in range((until - 2) * 5, until * 5):
            rates = [learning_rate(e.optim, step, 5, e.train.epochs) for e in (part, whole)]
            assert rates[0] == rates[1]
    assert paused_after(Experiment(), 2).optim == Experiment().optim


def test_what_is_left_of_a_population_is_shown_beforehand(tmp_path: Path) -> None:
    run = Run(settings(), tmp_path)
    assert not run.to_the_end(dies_after=25)
    again = Run(settings(), tmp_path)
    text, table = preview(again.plan, again.past, again.todo, 2, "2 CPUs")
    page = io.StringIO()
    Console(file=page, width=200).print(table)
    assert text.startswith("5 trials x 5 epochs: 5 to run; 2 at a time (2 CPUs).")
    assert "goes on after epoch 2" in page.getvalue()

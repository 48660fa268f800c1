"""The best of a sweep with several seeds while it runs: at every moment what its report would say."""

from __future__ import annotations

import io
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raysweep.config import Sweep
from raysweep.store import results
from raysweep.store.journal import JournalWriter
from raysweep.tune.leader import Leading
from raysweep.tune.plan import make_plan
from raysweep.tune.progress import Progress
from raysweep.tune.recorder import SweepRecorder
from raysweep.tune.seeds import Configurations


def began(directory: Path, **search: Any) -> tuple[JournalWriter, SweepRecorder]:
    experiment = {"data": {"source": "digits", "count": 50}, "train": {"epochs": 2}}
    settings = {"experiment": experiment, "space": {"optim.lr": {"grid": [1e-3, 1e-2, 1e-1]}}, "search": search}
    sweep = Sweep.from_dict(settings)
    journal = JournalWriter(directory / "journal.jsonl")
    journal.event("start", sweep=sweep.model_dump(mode="json", exclude_unset=True), experiment={}, data={})
    return journal, SweepRecorder(make_plan(sweep), journal)


def begin(recorder: SweepRecorder, number: int) -> None:
    recorder.assigned(f"id{number}", next(trial for trial in recorder.plan.trials if trial.number == number))
    recorder.started(f"id{number}")


@pytest.mark.parametrize("contest", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_the_report_would_say(seed: int, contest: bool, tmp_path: Path) -> None:
    search = {"seeds": 3, "contenders": 2} if contest else {"seeds": 3}
    journal, recorder = began(tmp_path, **search)
    draw, leading, seen = random.Random(seed), Leading(recorder), set()
    view = Configurations(recorder.plan)
    if contest:
        for first in list(view.trials)[:2]:
            view.add_all(first)
    numbers = [trial.number for trial in recorder.plan.trials]
    with closing(journal):
        for place, number in enumerate(sorted(numbers, key=lambda n: (contest and n > 2, draw.random()))):
            if contest and place == 3:
                begin_contest = {"action": "contend", "rule": "contenders", "contenders": [0, 1], "seeds": 3}
                recorder.decided(0, begin_contest)
            begin(recorder, number)
            for epoch in (1, 2):
                value = None if draw.random() < 0.1 else draw.random()
                recorder.row(f"id{number}", {"epoch": epoch, "val_loss": value})
                seen.add(same(leading, tmp_path))
            recorder.ended(f"id{number}", draw.choice(["completed", "completed", "stopped", "diverged", "failed"]), {})
            seen.add(same(leading, tmp_path))
        if contest:
            recorder.decided(1, {"action": "drop", "rule": "contenders", "round": 2, "leader": 0, "p": 0.01, "level": 0.02})
            seen.add(same(leading, tmp_path))
    assert len(seen) > 2, "it changes"


def same(leading: Leading, directory: Path) -> float | None:
    """Check that the best configuration so far is the journal's; its mean."""
    found, told = leading.find(), results.load(directory)
    if told.best is None:
        assert found is None
        return None
    row = told.configurations.iloc[0] if told.has_seeds else None
    assert found is not None
    if row is None:  # only first seeds have been planned
        assert (found.trials, found.mean) == ((told.best["trial"],), told.best["val_loss"])
        return found.mean
    good = told.trials[~told.trials["status"].isin(["diverged", "failed"]) & told.trials["val_loss"].notna()]
    assert found.trials == tuple(number for number in row["trials"] if number in set(good["trial"]))
    assert (found.mean, len(found.values)) == (pytest.approx(row["mean"]), row["seeds"])
    return found.mean


def test_the_live_table_shows_the_best_mean_and_no_lucky_seed(tmp_path: Path) -> None:
    journal, recorder = began(tmp_path, seeds=2)
    text = io.StringIO()
    progress = Progress(Console(file=text, width=100, height=30))
    progress.begin(recorder)

    def summary() -> str:
        return str(progress.render().caption)

    with closing(journal):
        assert "0/6 ended; no result yet; " in summary()
        for number, loss in ((0, 0.1), (3, 0.9), (1, 0.3), (4, 0.4)):  # 0 and 3 are one configuration, 1 and 4 another
            begin(recorder, number)
            recorder.row(f"id{number}", {"epoch": 1, "val_loss": loss})
            if number == 0:
                assert "best: trial 0, 0.1 (mean of 1 seed); " in summary()
        assert "best: trials 1, 4, 0.35 (mean of 2 seeds); " in summary()
        table = progress.render()
        bold = [str(list(table.columns[0].cells)[place]) for place, row in enumerate(table.rows) if row.style == "bold"]
        assert bold == ["1", "4"]

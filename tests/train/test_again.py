"""A single run goes on where it was killed, interrupted or failed, and gets more epochs: no epoch is told twice."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raysweep
from raysweep.errors import ConfigError, RaysweepError, StoreError, TrialError
from raysweep.store.journal import read_events
from raysweep.store.remote import open_place
from raysweep.train import ledger
from raysweep.train.run import run

TIMES = ["seconds", "samples_per_second", "data_wait", "peak_memory_bytes", "time", "attempt", "pause_s", "redone_steps"]


def tiny(epochs: int = 6, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"source": "digits", "count": 60},
        "model": {"depth": 1, "base_channels": 4},
        "train": {"epochs": epochs, "batch_size": 8, "checkpoint_every_epochs": 1, "ledger": True},
        **changes,
    }


def train(experiment: dict[str, Any], storage: Path | str, resume: bool = True, stop_after: int | None = None) -> list[str]:
    """Train in this process, with Ctrl-C after an epoch; what was said, and the epochs that were told."""
    said: list[str] = []

    def on_row(row: Any) -> None:
        said.append(f"epoch {row['epoch']}")
        if row["epoch"] == stop_after:
            raise KeyboardInterrupt

    settings = raysweep.Experiment.from_dict(experiment)
    run(settings, storage=storage, local=True, resume=resume, say=said.append, on_row=on_row)
    return said


def epochs(said: list[str]) -> list[int]:
    return [int(line.removeprefix("epoch ")) for line in said if line.startswith("epoch ")]


def check_equals_uninterrupted(directory: Path, num_epochs: int, tmp_path: Path, has_ledger: bool = True) -> None:
    whole = raysweep.train(tiny(num_epochs), storage=tmp_path / "whole", local=True)
    went_on = raysweep.open(directory)
    told = [event["epoch"] for event in read_events(directory / "journal.jsonl") if event["event"] == "row"]
    assert told == list(range(1, num_epochs + 1)), "each epoch once"
    kept = [name for name in whole.rows.columns if name not in TIMES]
    assert went_on.rows[kept].equals(whole.rows[kept])
    if has_ledger:
        (trial,) = (directory / "trials").iterdir()
        report = ledger.check(ledger.committed(trial), range(1, num_epochs + 1))
        assert (report.lost, report.repeated) == (0, 0), "each sample once in each epoch"
    assert went_on.trials.loc[0, "status"] == "completed"
    assert went_on.results.finished == "completed"


def test_after_ctrl_c_it_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    assert epochs(train(tiny(), tmp_path, resume=False, stop_after=2)) == [1, 2]
    said = train(tiny(), tmp_path)
    assert said[0] == "going on: train/ was interrupted after epoch 2 of 6"
    assert epochs(said) == [3, 4, 5, 6]
    assert not (tmp_path / "train-2").exists()
    check_equals_uninterrupted(tmp_path / "train", 6, tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
import raysweep
from raysweep.train.run import run

def on_row(row):
    if row["epoch"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

run(raysweep.Experiment.from_dict({experiment!r}), storage=Path(sys.argv[1]), local=True, on_row=on_row)
"""


@pytest.mark.slow
def test_after_kill_9_it_goes_on(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED.format(experiment=tiny()), str(tmp_path)], timeout=500, check=False)
    assert killed.returncode == -signal.SIGKILL
    said = train(tiny(), tmp_path)
    assert said[0] == "going on: train/ was killed after epoch 3 of 6"
    assert epochs(said) == [4, 5, 6], "the third was told, whether or not its checkpoint was there"
    check_equals_uninterrupted(tmp_path / "train", 6, tmp_path)


def test_a_failed_run_goes_on_once_its_cause_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fragile_net.py").write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def __init__(self):\n"
        "        super().__init__(1, 1, 3, padding=1)\n"
        "    def forward(self, x):\n"
        "        assert not Path('broken').exists() or not self.training, 'broken'\n"
        "        return super().forward(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    fragile = tiny(3, model={"factory": "fragile_net:Net"})
    train(fragile, tmp_path, resume=False, stop_after=1)
    Path("broken").touch()
    with pytest.raises(TrialError, match="broken"):
        train(fragile, tmp_path)
    Path("broken").unlink()
    said = train(fragile, tmp_path)
    assert said[0] == "going on: train/ failed after epoch 1 of 3"
    assert epochs(said) == [2, 3]
    assert raysweep.open(tmp_path / "train").trials.loc[0, "attempts"] == 3


def test_more_epochs_are_added_and_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train(tiny(2), tmp_path, resume=False)
    journal = (tmp_path / "train" / "journal.jsonl").read_bytes()
    for fewer_or_equal in (1, 2):
        assert train(tiny(fewer_or_equal), tmp_path) == ["train/ completed after epoch 2 of 2: nothing is left to train"]
    assert (tmp_path / "train" / "journal.jsonl").read_bytes() == journal
    assert epochs(train(tiny(6), tmp_path)) == [3, 4, 5, 6]
    check_equals_uninterrupted(tmp_path / "train", 6, tmp_path)
    assert raysweep.open(tmp_path / "train").results.experiment["train"]["epochs"] == 6


def test_a_diverged_run_would_diverge_again(tmp_path: Path) -> None:
    diverging = tiny(optim={"lr": 1e9, "name": "sgd"})
    train(diverging, tmp_path, resume=False)
    (said,) = train(diverging, tmp_path)
    assert "train/ diverged" in said
    assert "nothing is left to train" in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"optim": {"lr": 0.5}}, r"optim.lr differs \(its default, now 0.5\)"),
        ({"data": {"source": "digits", "count": 50}}, "the images differ"),
    ],
)
def test_other_settings_or_images_are_another_run(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    train(tiny(2), tmp_path, resume=False)
    before = (tmp_path / "train" / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"train/ is another run: {why}.*leave out --resume"):
        train(tiny(2, **change), tmp_path)
    assert (tmp_path / "train" / "journal.jsonl").read_bytes() == before


def test_settings_that_are_changed_back_find_their_run(tmp_path: Path) -> None:
    train(tiny(3), tmp_path, resume=False, stop_after=1)
    train(tiny(3, optim={"lr": 0.5}), tmp_path, resume=False, stop_after=2)
    assert train(tiny(3), tmp_path)[0] == "going on: train/ was interrupted after epoch 1 of 3"
    assert train(tiny(3, optim={"lr": 0.5}), tmp_path)[0] == "going on: train-2/ was interrupted after epoch 2 of 3"


def test_workers_may_differ(tmp_path: Path) -> None:
    train(tiny(3), tmp_path, resume=False, stop_after=1)
    assert epochs(train(tiny(3, scale={"workers": [1, 2]}), tmp_path)) == [2, 3]


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run to go on with in .*train; leave out --resume"):
        train(tiny(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_at_once(tmp_path: Path) -> None:
    train(tiny(), tmp_path, resume=False, stop_after=1)
    settings = raysweep.Experiment.from_dict(tiny())
    seen: list[str] = []

    def second(_row: Any) -> None:
        with pytest.raises(StoreError, match=r"in use by process .* wait until it has ended, or leave out --resume"):
            train(tiny(), tmp_path)
        seen.extend(train(tiny(1), tmp_path, resume=False))

    run(settings.with_overrides({"train.epochs": 2}), storage=tmp_path, local=True, resume=True, on_row=second)
    assert epochs(seen) == [1], "a new one beside it may start"
    assert not any("--resume" in line for line in seen), "what runs is not to be gone on with"
    assert (tmp_path / "train-2").exists()


def test_a_run_that_is_kept_at_a_uri_goes_on_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.store.lease._SETTLE_S", 0.0)
    uri = f"file://{tmp_path}/bucket"

    def on_machine(name: str, resume: bool, stop_after: int | None = None) -> list[str]:
        monkeypatch.setattr("raysweep.train.run.open_place", lambda *given: opened(given[0], tmp_path / name, given[2]))
        return train(tiny(), uri, resume, stop_after)

    opened = open_place
    assert epochs(on_machine("a", resume=False, stop_after=2)) == [1, 2]
    shutil.rmtree(tmp_path / "a")
    said = on_machine("b", resume=True)
    assert said[0].startswith(f"fetched train/ from {uri}")
    assert epochs(said) == [3, 4, 5, 6]
    check_equals_uninterrupted(tmp_path / "b" / "train", 6, tmp_path, has_ledger=False)
    assert epochs(on_machine("c", resume=True)) == [], "fetched, and seen to be whole"
    said = on_machine("c", resume=False, stop_after=1)
    assert (tmp_path / "c" / "train-2").exists(), "and a new one takes no other's name"


def test_a_new_run_says_what_could_go_on(tmp_path: Path) -> None:
    assert not any("--resume" in line for line in train(tiny(), tmp_path, resume=False, stop_after=1))
    said = train(tiny(1), tmp_path, resume=False)
    assert "note: train/ was interrupted after epoch 1 of 6; --resume would go on with it, this starts anew" in said
    assert not any("--resume" in line for line in train(tiny(1), tmp_path, resume=False)), "the newest has completed"


def test_a_sweep_of_that_name_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "journal.jsonl").write_text('{"event":"start","sweep":{"space":{}},"experiment":{}}\n')
    with pytest.raises(StoreError, match="no run to go on with"):
        train(tiny(), tmp_path)
    (tmp_path / "train" / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(RaysweepError, match="is damaged at line 1"):
        train(tiny(), tmp_path)
    train(tiny(1), tmp_path, resume=False)
    assert (tmp_path / "train-2").exists()


def test_a_new_run_is_the_newest_where_an_older_one_was_deleted(tmp_path: Path) -> None:
    for _ in range(3):
        train(tiny(1), tmp_path, resume=False)
    shutil.rmtree(tmp_path / "train")
    shutil.rmtree(tmp_path / "train-2")
    (tmp_path / "train-9").mkdir()  # somebody's folder
    train(tiny(), tmp_path, resume=False, stop_after=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-3", "train-4", "train-9"]
    assert epochs(train(tiny(), tmp_path)) == [3, 4, 5, 6], "and --resume finds it"

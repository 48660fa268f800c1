"""Weights that move between trials: the copy trains as the donor would have, and a crash in between is done again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import final_weights, local_run, tiny_dataset, tiny_experiment

from raysweep.errors import CheckpointError
from raysweep.experiment import Experiment
from raysweep.store.directory import copied
from raysweep.train import checkpoint, clone

DATASET = tiny_dataset(24)
DONOR = {"optim__name": "adamw", "optim__lr": 1e-2, "optim__weight_decay": 0.1}
RECEIVER = {"optim__name": "adamw", "optim__lr": 1e-5}


def experiment(epochs: int, **settings: Any) -> Experiment:
    return tiny_experiment(train__epochs=epochs, **settings)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, Path]:
    """A good donor and a receiver that hardly moves, both after two epochs."""
    donor, receiver = tmp_path / "donor", tmp_path / "receiver"
    for directory, settings in ((donor, DONOR), (receiver, RECEIVER)):
        directory.mkdir()
        local_run(experiment(2, **settings), DATASET, directory)
    return donor, receiver


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_copy_trains_as_the_donor_would_have_with_the_new_settings(trained: tuple[Path, Path], tmp_path: Path) -> None:
    donor, receiver = trained
    new = {"optim__name": "adamw", "optim__lr": 8e-3, "optim__weight_decay": 0.3, "optim__betas": [0.8, 0.99]}
    expected = tmp_path / "expected"
    shutil.copytree(donor, expected)
    path = checkpoint.newest_path(expected)
    assert path is not None
    content = checkpoint.load(path)
    for group in content["optimizer"]["param_groups"]:
        group["weight_decay"], group["betas"] = 0.3, (0.8, 0.99)
    checkpoint.save_numbered(expected, content["progress"]["global_step"], content)
    _, by_hand = local_run(experiment(4, **new), DATASET, expected)

    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **new), 1)
    _, rows = local_run(experiment(4, **new), DATASET, receiver)
    assert [row["epoch"] for row in rows] == [3, 4], "the donor's row is not told as the copy's"
    assert [row["val_loss"] for row in rows] == [row["val_loss"] for row in by_hand[-2:]]
    assert same(final_weights(receiver), final_weights(expected))


def test_settings_of_the_optimizer_are_the_copys_own(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **RECEIVER, optim__betas=[0.5, 0.9]), 1)
    found = checkpoint.newest_complete(receiver)
    assert found is not None
    (group,) = found.content["optimizer"]["param_groups"]
    assert (group["weight_decay"], tuple(group["betas"])) == (0.0, (0.5, 0.9))
    of_donor = checkpoint.newest_complete(donor)
    assert of_donor is not None
    assert same(found.content["optimizer"]["state"][0], of_donor.content["optimizer"]["state"][0]), "the moments are the donor's"


def test_the_best_epoch_stays_the_trials_own(trained: tuple[Path, Path]) -> None:
    """The other way round: the good one copies the bad one, and its best.pt must stand until it is beaten."""
    bad, good = trained[1], trained[0]
    before = checkpoint.load(good / "best.pt")
    clone.offer(bad, good, 1)
    clone.take(good, experiment(3, **RECEIVER), 1)
    local_run(experiment(3, **RECEIVER), DATASET, good)
    after = checkpoint.load(good / "best.pt")
    assert after["val_loss"] == before["val_loss"]
    assert same(after["model"], before["model"])
    found = checkpoint.newest_complete(good)
    assert found is not None
    assert (found.content["progress"]["best"], found.content["progress"]["best_epoch"]) == (before["val_loss"], before["epoch"])


def test_a_better_copy_becomes_the_trials_best(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(3, **DONOR), 1)
    _, rows = local_run(experiment(3, **DONOR), DATASET, receiver)
    best = checkpoint.load(receiver / "best.pt")
    assert (best["epoch"], best["val_loss"]) == (3, rows[-1]["val_loss"])


def test_checkpoints_of_the_receiver_with_more_steps_do_not_win(trained: tuple[Path, Path]) -> None:
    """Smaller batches make more steps an epoch: a higher number is not a later epoch."""
    donor, receiver = trained
    shutil.rmtree(receiver)
    receiver.mkdir()
    local_run(experiment(2, train__batch_size=2), DATASET, receiver)
    assert max(receiver.glob("ckpt-*.pt")).name > max(donor.glob("ckpt-*.pt")).name
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    _, rows = local_run(experiment(4, **DONOR), DATASET, receiver)
    assert [row["epoch"] for row in rows] == [3, 4]
    assert [row["step"] for row in rows] == [9, 12]


def test_the_donor_may_train_on_before_it_is_copied(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    weights = final_weights(donor)
    clone.offer(donor, receiver, 1)
    local_run(experiment(6, **DONOR, train__checkpoint_every_epochs=1), DATASET, donor)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert same(final_weights(receiver), weights)


def test_a_crash_while_it_is_taken_is_done_again_and_a_second_time_is_nothing(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, receiver = trained
    weights = final_weights(donor)
    clone.offer(donor, receiver, 1)
    with monkeypatch.context() as broken:

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        broken.setattr(checkpoint, "save_numbered", dies)
        with pytest.raises(KeyboardInterrupt):
            clone.take(receiver, experiment(4, **DONOR), 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert same(final_weights(receiver), weights)
    local_run(experiment(4, **DONOR), DATASET, receiver)
    further = final_weights(receiver)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert same(final_weights(receiver), further)


def test_who_has_lost_its_checkpoints_begins_again_with_what_it_copied_last(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """As a machine finds it that fetched only a part: none, or those of the time before the copy, with more steps."""
    donor, receiver = trained
    before = tmp_path / "before"
    shutil.copytree(receiver, before)
    local_run(experiment(5, train__batch_size=2), DATASET, before)
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    local_run(experiment(4, **DONOR), DATASET, receiver)
    expected = final_weights(receiver)
    for found in ((), sorted(before.glob("ckpt-*"))):
        for path in receiver.glob("ckpt-*"):
            path.unlink()
        for path in found:
            shutil.copy(path, receiver)
        clone.take(receiver, experiment(4, **DONOR), 1)
        local_run(experiment(4, **DONOR), DATASET, receiver)
        assert same(final_weights(receiver), expected)


def test_checkpoints_since_the_copy_stand_beside_older_ones_with_more_steps(trained: tuple[Path, Path], tmp_path: Path) -> None:
    donor, receiver = trained
    older = tmp_path / "older"
    older.mkdir()
    local_run(experiment(3, train__batch_size=2), DATASET, older)
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    local_run(experiment(3, **DONOR), DATASET, receiver)
    newest = checkpoint.newest_path(receiver)
    for path in older.glob("ckpt-*"):
        shutil.copy(path, receiver)
    assert checkpoint.newest_path(receiver) != newest
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert checkpoint.newest_path(receiver) == newest, "no epoch is trained again"


def test_a_second_copy_replaces_the_first(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    clone.offer(receiver, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    clone.offer(donor, receiver, 2)
    assert sorted(path.name for path in receiver.glob("*clone*")) == ["clone-1", "clone-2"]
    clone.drop_older(receiver, 2)
    assert [path.name for path in receiver.glob("*clone*")] == ["clone-2"]
    clone.take(receiver, experiment(4, **DONOR), 2)
    assert same(final_weights(receiver), final_weights(donor))


def test_what_stands_at_an_epochs_end_can_be_copied(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    assert [clone.stands_at(donor, epoch, 0) for epoch in (1, 2, 3)] == [False, True, False]
    assert not clone.stands_at(donor, 2, 1), "it has not taken yet what it copied"
    clone.offer(donor, receiver, 1)
    assert not clone.stands_at(receiver, 2, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert clone.stands_at(receiver, 2, 1)
    local_run(experiment(3, **DONOR), DATASET, receiver)
    assert clone.stands_at(receiver, 3, 1)
    assert not clone.stands_at(receiver.with_name("nobody"), 2, 0)


def test_an_offer_that_was_made_before_a_crash_is_made_anew(trained: tuple[Path, Path]) -> None:
    donor, receiver = trained
    (receiver / ".clone-1").mkdir()
    (receiver / ".clone-1" / "half").write_bytes(b"")
    clone.offer(receiver, receiver, 1)
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert same(final_weights(receiver), final_weights(donor))


def test_where_there_are_no_hard_links_it_is_copied(trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    donor, receiver = trained
    monkeypatch.setattr("os.link", refuses)
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **DONOR), 1)
    assert same(final_weights(receiver), final_weights(donor))


def test_what_cannot_be_copied_is_said(trained: tuple[Path, Path], tmp_path: Path) -> None:
    donor, receiver = trained
    with pytest.raises(CheckpointError, match="no complete checkpoint to copy"):
        clone.offer(tmp_path / "nobody", receiver, 1)
    clone.offer(donor, receiver, 1)
    for path in copied(receiver, 1).glob("*.pt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"clone-1 is damaged or gone"), pytest.warns(RuntimeWarning):
        clone.take(receiver, experiment(4, **DONOR), 1)


@pytest.mark.parametrize("swept", [{"train__seed": 5}, {"train__batch_size": 5}, {"train__exactness": "bitwise"}])
def test_seed_batch_size_and_exactness_move_with_the_weights(tmp_path: Path, swept: dict[str, Any]) -> None:
    """They are copied with the weights, so the copy goes on exactly as the donor does."""
    donor, receiver, settings = tmp_path / "donor", tmp_path / "receiver", {**DONOR, **swept}
    for directory, own in ((donor, settings), (receiver, RECEIVER)):
        directory.mkdir()
        local_run(experiment(2, **own), DATASET, directory)
    clone.offer(donor, receiver, 1)
    clone.take(receiver, experiment(4, **settings), 1)
    _, rows = local_run(experiment(4, **settings), DATASET, receiver)
    _, further = local_run(experiment(4, **settings), DATASET, donor)
    assert [row["val_loss"] for row in rows] == [row["val_loss"] for row in further[-2:]]

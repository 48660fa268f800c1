"""Whatever happens to the disk or the process, the newest complete checkpoint loads and the run ends as if nothing had."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_train import local_run, tiny_dataset, tiny_experiment

from raysweep.errors import DiskError
from raysweep.train import checkpoint, ledger
from raysweep.train.loop import train
from raysweep.train.runtime import LocalRuntime

CONTENT = {"model": {"weight": torch.arange(50_000.0)}, "progress": {"step": 1}}


def written(directory: Path, *steps: int) -> Path:
    for step in steps:
        checkpoint.save_numbered(directory, step, CONTENT)
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def both(*steps: int) -> list[str]:
    return [f"ckpt-{step:09d}.{kind}" for step in steps for kind in ("json", "pt")]


def flip_a_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, r"ckpt-000000020\.pt is damaged: it has \d+ bytes, its marker says \d+"),
    "a flipped bit": (flip_a_byte, r"ckpt-000000020\.pt is damaged: its CRC-32 is not the one in its marker"),
    "no marker": (lambda p: p.with_suffix(".json").unlink(), r"20\.pt is incomplete: there is no ckpt-000000020\.json"),
    "marker alone": (lambda p: p.unlink(), r"ckpt-000000020\.pt is missing: there is only its marker"),
    "torn marker": (lambda p: p.with_suffix(".json").write_text('{"size": 1'), r"its marker ckpt-000000020\.json cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_one_is_skipped_with_its_name_and_the_reason(tmp_path: Path, damage: str) -> None:
    spoil, told = DAMAGES[damage]
    spoil(written(tmp_path, 10, 20) / "ckpt-000000020.pt")
    with pytest.warns(RuntimeWarning, match=told):
        found = checkpoint.newest_complete(tmp_path)
    assert found is not None
    assert found.path.name == "ckpt-000000010.pt"
    assert torch.equal(found.content["model"]["weight"], CONTENT["model"]["weight"])
    # What the run then writes must outlive the damaged one beside it, and go on being found.
    for step, left in ((12, both(10, 12)), (15, both(12, 15))):
        written(tmp_path, step)
        assert set(left) <= set(names(tmp_path))
        assert len(names(tmp_path)) <= 6
    with pytest.warns(RuntimeWarning, match=told):
        assert checkpoint.newest_complete(tmp_path).path.name == "ckpt-000000015.pt"  # type: ignore[union-attr]
    assert names(written(tmp_path, 20, 30)) == both(20, 30)


def test_the_newest_is_read_once_and_an_older_one_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 10, 20)
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    monkeypatch.setattr(checkpoint.torch.serialization, "_open_file", lambda *_given: pytest.fail("a file was opened again"))
    checkpoint.newest_complete(tmp_path)
    assert read == ["ckpt-000000020.json", "ckpt-000000020.pt"]


def test_nothing_to_go_on_from_is_no_error(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.newest_complete(tmp_path) is None
        assert checkpoint.newest_complete(tmp_path / "not there") is None
    for path in written(tmp_path, 10, 20).glob("*.pt"):
        truncate(path)
    with pytest.warns(RuntimeWarning, match="is damaged") as told:
        assert checkpoint.newest_complete(tmp_path) is None
    assert len(told) == 2


def test_the_newest_two_are_kept_and_an_older_one_goes_only_after_the_newer_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(written(tmp_path, 10, 20, 30)) == both(20, 30)
    delete, seen = checkpoint._delete, []

    def look(path: Path) -> None:
        if not path.name.startswith("."):
            seen.append(checkpoint.newest_complete(tmp_path).path.name)  # type: ignore[union-attr]
        delete(path)

    monkeypatch.setattr(checkpoint, "_delete", look)
    assert names(written(tmp_path, 40)) == both(30, 40)
    assert seen == ["ckpt-000000040.pt"] * 2


def test_an_incomplete_one_does_not_push_out_a_complete_one(tmp_path: Path) -> None:
    written(tmp_path, 10, 20)
    (tmp_path / "ckpt-000000020.json").unlink()
    assert names(written(tmp_path, 30)) == both(10, 30)


def test_the_marker_comes_after_the_file_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(Path, "replace", lambda path, to: done.append(f"rename {to.suffix}") or replace(path, to))
    kinds = {True: "sync directory", False: "sync file"}
    monkeypatch.setattr(
        os, "fsync", lambda number: done.append(kinds[Path(f"/proc/self/fd/{number}").resolve().is_dir()]) or fsync(number)
    )
    written(tmp_path, 10)
    assert done == ["sync file", "rename .pt", "sync directory", "sync file", "rename .json", "sync directory"]


def test_a_start_deletes_what_killed_writers_left(tmp_path: Path) -> None:
    written(tmp_path, 10)
    checkpoint.save(tmp_path / "best.pt", CONTENT)
    kept = names(tmp_path)
    for name in (".ckpt-000000020.pt.x1", ".ckpt-000000010.json.x2", ".best.pt.x3"):
        (tmp_path / name).write_bytes(b"half")
    assert checkpoint.start(tmp_path).path.name == "ckpt-000000010.pt"  # type: ignore[union-attr]
    assert names(tmp_path) == kept


# Disks.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount") or pytest.skip("there is no mount")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting needs root: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


# A checkpoint of 240 KB and a best.pt of 80 KB.
WIDE: dict[str, Any] = {"model__depth": 2, "model__base_channels": 16, "train__checkpoint_every_epochs": 1}


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_fails_ends_the_run_with_the_reason_and_the_last_checkpoint_intact(small_disk: Path, fault: str) -> None:
    dataset, trial = tiny_dataset(20), small_disk / "trial"
    _, whole = local_run(tiny_experiment(train__epochs=2, **WIDE), dataset, trial)
    if fault == "full":
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "filler").write_bytes(bytes(2 << 20))
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    why = "the disk is full" if fault == "full" else "Read-only file system"
    before = {path.name: path.read_bytes() for path in trial.iterdir()}
    with pytest.raises(DiskError, match=f"cannot write .*/trial/[a-z].*: {why}"):
        local_run(tiny_experiment(train__epochs=8, **WIDE), dataset, trial)
    assert {path.name: path.read_bytes() for path in trial.iterdir()} == before
    assert checkpoint.newest_complete(trial).content["progress"]["row"] == whole[-1]  # type: ignore[union-attr]
    if fault == "full":
        (small_disk / "filler").unlink()
        outcome, rows = local_run(tiny_experiment(train__epochs=4, **WIDE), dataset, trial)
        assert (outcome.status, [row["epoch"] for row in rows]) == ("completed", [2, 3, 4])


def test_a_full_disk_is_told_when_only_the_marker_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 10)
    replace = Path.replace

    def full(path: Path, to: Path) -> Path:
        if to.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, to)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiskError, match="the disk is full"):
        written(tmp_path, 20)
    with pytest.warns(RuntimeWarning, match="incomplete"):
        assert checkpoint.newest_complete(tmp_path).path.name == "ckpt-000000010.pt"  # type: ignore[union-attr]


# Killed processes: real ones, forked from a server that has torch loaded.

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["raysweep.train.loop", "torch._dynamo", "pytest"])  # the first optimizer imports dynamo


def _train(
    directory: Path, epochs: int, channels: int, lr: float, kill_before_rename: int | None, kill_after_bytes: int | None = None
) -> None:
    torch.set_num_threads(1)
    if kill_after_bytes is not None:
        write, left = checkpoint._Sealing.write, [kill_after_bytes]

        def counted_bytes(sealing: checkpoint._Sealing, data: bytes | memoryview) -> int:
            written_bytes = write(sealing, data)
            left[0] -= written_bytes
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return written_bytes

        checkpoint._Sealing.write = counted_bytes  # type: ignore[assignment,method-assign]
    if kill_before_rename is not None:
        replace, done = Path.replace, iter(range(10**9))

        def counted(path: Path, to: Path) -> Path:
            if next(done) == kill_before_rename:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(path, to)

        Path.replace = counted  # type: ignore[assignment,method-assign]
    experiment = tiny_experiment(
        train__epochs=epochs, train__ledger=True, train__checkpoint_every_epochs=1, train__checkpoint_every_s=0.01,
        model__depth=2, model__base_channels=channels, data__noise=0.1, optim__lr=lr, optim__name="sgd", optim__momentum=0.9,
    )  # fmt: skip
    assert train(experiment, tiny_dataset(20), LocalRuntime(directory)).status == "completed"


def started(directory: Path, attempt: int, *given: Any) -> Any:
    """A process that trains, from its first step on."""
    process = _FORKS.Process(target=_train, args=(directory, *given))
    process.start()
    while not (directory / "ledger" / f"{attempt:05d}-0.jsonl").exists() and process.is_alive():
        time.sleep(0.002)
    return process


def assert_ended_the_same(cut: Path, whole: Path, epochs: int) -> None:
    assert not list(cut.glob(".*")), "nothing unfinished stays behind"
    for name in ("best.pt", max(path.name for path in whole.glob("ckpt-*.pt"))):
        a, b = checkpoint.load(cut / name), checkpoint.load(whole / name)
        assert a["model"].keys() == b["model"].keys()
        assert all(torch.equal(a["model"][key], b["model"][key]) for key in b["model"])
        assert a.get("epoch") == b.get("epoch")
    report = ledger.check(ledger.committed(cut), range(1, epochs + 1))
    assert (report.lost, report.repeated) == (0, 0)


def newest_step(directory: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = checkpoint.newest_complete(directory)
    return int(found.content["progress"]["global_step"]) if found else 0


def test_killed_before_each_rename_and_resumed_is_the_uninterrupted_run(tmp_path: Path) -> None:
    # A checkpoint is two renames, or three with best.pt: however few checkpoints the clock asks for, 9 lives end before epoch 17.
    whole, cut, case = tmp_path / "whole", tmp_path / "cut", (epochs := 18, 4, 0.2)
    started(whole, 1, *case, None).join()
    assert 1 <= checkpoint.load(whole / "best.pt")["epoch"] < epochs, "this learning rate is meant to overshoot"
    before = 0
    for kills in range(9):
        process = started(cut, kills + 1, *case, kills)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert newest_step(cut) >= before
        before = newest_step(cut)
    assert 0 < before < 3 * epochs
    started(cut, 10, *case, None).join()
    assert_ended_the_same(cut, whole, epochs)


def test_killed_ten_times_at_random_moments_is_the_uninterrupted_run(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    case = (epochs := 30), 100, 0.02
    process, began = started(whole, 1, *case, None), time.perf_counter()
    process.join()
    longest_s = (time.perf_counter() - began) / 6
    size = max(whole.glob("ckpt-*.pt")).stat().st_size
    assert size > 3_000_000
    moments = random.Random(5)
    before = 0
    for kills in range(10):
        in_a_save = kills < 5  # so many bytes into its checkpoints; then by the clock, which may be anywhere
        process = started(cut, kills + 1, *case, None, moments.randrange(size * 5 // 2) if in_a_save else None)
        process.join(None if in_a_save else moments.uniform(0, longest_s))
        process.kill()
        process.join()
        if in_a_save:
            assert process.exitcode == -signal.SIGKILL
            assert list(cut.glob(".*")), "a save was cut short"
        assert newest_step(cut) >= before
        before = newest_step(cut)
    process = started(cut, 11, *case, None)
    process.join()
    assert process.exitcode == 0
    assert_ended_the_same(cut, whole, epochs)

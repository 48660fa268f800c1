"""Bad input: one clear message, exit code 2, no Ray started, nothing written."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raysweep.__main__ import app

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command in an empty directory, on a machine with 2 CPUs and no GPU, in which Ray must not start."""
    import ray

    from raysweep.cluster import join
    from raysweep.cluster.resources import Available
    from raysweep.train import run as training
    from raysweep.tune import engine

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", lambda *_a, **_k: pytest.fail("Ray was started"))
    for module in (training, engine):
        monkeypatch.setattr(module, "running_cluster", lambda: None)
        monkeypatch.setattr(module, "available_here", lambda: Available(2, 0))
    assert join.connected is training.connected

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return invoke


def refused(result: Result, tmp_path: Path, *texts: str) -> None:
    __tracebackhide__ = True
    assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
    assert "Traceback" not in result.output
    assert result.stderr.count("error:") == 1
    for text in texts:
        assert text in result.stderr, result.stderr
    assert not (tmp_path / "results").exists(), "something was written"


SETTINGS = [
    pytest.param(["optim.lrr=1"], ["optim.lrr: unknown key; nearest: lr"], id="unknown key"),
    pytest.param(["optim.lr=abc"], ["optim.lr", "'abc'"], id="lr: abc"),
    pytest.param(["data.source=folder", "data.path=nowhere"], ["nowhere", "data.path"], id="missing folder"),
    pytest.param(["scale.use_gpu=true"], ["a GPU was asked for, this machine has none", "scale.use_gpu"], id="no GPU"),
    pytest.param(
        ["scale.workers=3"], ["3 workers need a CPU each, this machine has 2 CPUs", "scale.workers"], id="too many workers"
    ),
    pytest.param(["scale.cpus_per_worker=4"], ["4 CPUs", "this machine has 2 CPUs", "scale.cpus_per_worker"], id="too many CPUs"),
    pytest.param(["model.factory=nothere:build"], ["cannot import nothere"], id="missing module"),
    pytest.param(["scale.workers=2", "model.norm=batch"], ["norm", "group"], id="batch norm on several CPU workers"),
]


def test_batch_norm_in_a_users_own_model_on_several_cpu_workers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "batchnorm_net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))\n"
    )
    refused(run("train", "--workers", "2", "--set", "model.factory=batchnorm_net:build"), tmp_path, "GroupNorm")


@pytest.mark.parametrize(("sets", "texts"), SETTINGS)
@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_setting_that_cannot_work(run: Run, tmp_path: Path, command: str, sets: list[str], texts: list[str]) -> None:
    options = [option for item in sets for option in ("--set", item)]
    if command == "tune":
        (tmp_path / "sweep.yaml").write_text("space: {train.seed: {grid: [0, 1]}}")
        result = run("tune", "sweep.yaml", *options)
    else:
        result = run("train", *options)
    refused(result, tmp_path, *texts)


def test_a_depth_that_the_images_do_not_carry(run: Run, tmp_path: Path) -> None:
    refused(run("train", "--set", "model.depth=9"), tmp_path, "images of 32x32 carry at most depth 5, got 9")
    result = run("tune", "--set", "space.model.depth={grid: [8, 9]}")
    refused(result, tmp_path, "model.depth", "at most depth 5")


def test_zero_images(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(run("train", "--set", "data.source=folder", "--set", "data.path=empty"), tmp_path, "0 images", "empty")


@pytest.mark.parametrize("command", ["train", "tune"])
def test_storage_that_cannot_be_made(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "afile").write_text("x")
    refused(run(command, "--storage", "afile/below"), tmp_path, "afile is a file", "--storage")


def test_a_missing_file_and_no_yaml(run: Run, tmp_path: Path) -> None:
    refused(run("tune", "nothere.yaml"), tmp_path, "cannot read nothere.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    refused(run("tune", "broken.yaml"), tmp_path, "not valid YAML")


def test_local_takes_one_worker(run: Run, tmp_path: Path) -> None:
    refused(run("train", "--local", "--workers", "2"), tmp_path, "--local", "scale.workers")


def test_a_ray_of_another_program_is_left_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    from raysweep.cluster.join import running_cluster
    from raysweep.tune import engine

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"127.0.0.1:1"})
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _dir: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(engine, "running_cluster", running_cluster)
    refused(run("tune"), tmp_path, "another program runs its own Ray", "ray start --head")


def test_a_cluster_that_does_not_answer_is_told_at_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for more than nine minutes, and tells it in its own words."""
    from raysweep.cluster import join
    from raysweep.tune import engine

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, but not listening: it refuses
        address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr(engine, "running_cluster", join.running_cluster)
        why = f"cannot join the Ray cluster at {address}: [Errno 111] Connection refused; check RAY_ADDRESS, or set it to `local`"
        refused(run("tune"), tmp_path, why)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("trian.epochs=2", "--set trian.epochs: trian: unknown key; nearest: train; valid: name"),
        ("lr=2", "--set lr: no such setting; nearest: optim.lr; settings have dotted keys (model.depth)"),
        ("space.lr={grid: [1e-3]}", "space.lr: no such setting; nearest: optim.lr; settings have dotted keys (model.depth)"),
        ("space.optim.lr={grid: [1e-3], wen: model.depth > 2}", "'wen': 'model.depth > 2'}; wen: nearest: when"),
        ("space.model.depth.grid=[1, 2]", "a domain is set whole: --set 'space.model.depth={grid: [1, 2]}'"),
        ("scheduler=asha", "scheduler: takes settings below it (key: value; valid: name, params, grace_period"),
        ("constraints=model.depth > 2", "constraints: takes a list, [...], got 'model.depth > 2'"),
        ("name=a/b", "name: letters, digits and . _ -, at most 64, the first a letter or a digit; got 'a/b'"),
    ],
)
def test_a_setting_of_the_wrong_form_is_shown_the_right_one(run: Run, tmp_path: Path, setting: str, text: str) -> None:
    refused(run("tune", "--set", setting), tmp_path, text)


def test_all_mistakes_come_at_once(run: Run, tmp_path: Path) -> None:
    result = run("train", "--set", "optim.lr=-1", "--set", "model.dept=3", "--set", "train.epochs=0")
    refused(result, tmp_path, "3 mistakes", "optim.lr", "model.dept", "nearest: depth", "train.epochs")

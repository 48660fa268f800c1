"""The configuration: everything that cannot work is refused at once, with its key and the nearest valid name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from raysweep.config import Experiment, Sweep, default_sweep_path
from raysweep.errors import ConfigError
from raysweep.yamlfile import parse_text

SPACE = {"optim.lr": {"grid": [1e-3, 1e-2]}}


def refused(cls: type[Experiment] | type[Sweep], tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        cls.from_dict(tree)
    return str(caught.value)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- Experiment ---------------------------------------------------------------------------------------------------


def test_the_default_sweep_is_the_documented_one() -> None:
    sweep = Sweep.from_file()
    assert default_sweep_path().name == "lr_depth.yaml"
    assert sweep.space["optim.lr"].values() == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    assert sweep.space["model.depth"].values() == [1, 2, 3, 4]
    assert sweep.short_names() == {"optim.lr": "lr", "model.depth": "depth"}


def test_every_ready_sweep_is_valid() -> None:
    files = sorted(default_sweep_path().parent.glob("*.yaml"))
    assert files
    for path in files:
        Sweep.from_file(path)


def test_an_unknown_key_names_the_nearest_valid_one() -> None:
    message = refused(Experiment, {"optim": {"learning_rate": 1, "momentun": 0.9}, "trian": {}})
    assert "optim.momentun: unknown key; nearest: momentum" in message
    assert "optim.learning_rate: unknown key" in message
    assert "valid: name, lr," in message
    assert "trian: unknown key; nearest: train" in message


def test_all_mistakes_stand_in_one_error_with_their_keys() -> None:
    message = refused(Experiment, {"optim": {"lr": -1}, "model": {"depth": 0, "norm": "layer"}, "train": {"epochs": "many"}})
    assert message.startswith("experiment: 4 mistakes")
    for key in ("optim.lr: ", "model.depth: ", "model.norm: ", "train.epochs: "):
        assert f"\n  {key}" in message
    assert "got -1" in message


@pytest.mark.parametrize(
    ("text", "workers"), [("2", (2, 2)), ("[1, 8]", (1, 8)), ("1:8", (1, 8)), ("'3'", (3, 3)), ("[2]", (2, 2))]
)
def test_workers_are_a_number_or_a_range(text: str, workers: tuple[int, int]) -> None:
    scale = Experiment.from_dict(parse_text(f"scale: {{workers: {text}}}")).scale
    assert (scale.min_workers, scale.max_workers) == workers
    again = Experiment.model_validate_json(Experiment(scale=scale).model_dump_json()).scale
    assert again == scale


@pytest.mark.parametrize("text", ["0", "[0, 3]", "[3, 1]", "[1, 2, 3]", "true", "1.5", "many", "null", "'0:2'", "[]"])
def test_other_workers_are_refused_with_the_rule(text: str) -> None:
    message = refused(Experiment, parse_text(f"scale: {{workers: {text}}}"))
    assert "scale.workers: must be a number of workers, at least 1, or [min, max] with 1 <= min <= max; got" in message


def test_tuples_are_written_as_lists() -> None:
    tree = parse_text("optim: {betas: [0.8, 0.99]}\ndata: {source: folder, path: x, size: [48, 64]}")
    experiment = Experiment.from_dict(tree)
    assert experiment.optim.betas == (0.8, 0.99)
    assert experiment.data.size == (48, 64)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"optim": {"lr": float("nan")}}, "optim.lr"),
        ({"optim": {"lr": float("inf")}}, "optim.lr"),
        ({"optim": {"betas": [0.9, 1.5]}}, "optim.betas.1"),
        ({"optim": {"betas": [0.9]}}, "optim.betas"),
        ({"model": {"kernel_size": 4}}, "kernel_size must be odd"),
        ({"model": {"base_channels": 64, "max_channels": 32}}, "got 32 < 64"),
        ({"model": {"params": {"width": 3}}}, "model.params needs model.factory"),
        ({"model": {"factory": "no colon"}}, "model.factory"),
        ({"data": {"source": "folder"}}, "needs data.path"),
        ({"data": {"path": "x"}}, "built in"),
        ({"data": {"size": [3, 3]}}, "data.size"),
        ({"data": {"source": "digits", "channels": "rgb"}}, "data.channels"),
        ({"train": {"batch_size": 2}, "scale": {"workers": 3}}, "got 2 < 3"),
        ({"optim": {"schedule_epochs": 3}}, "schedule_epochs goes with"),
        ({"train": {"epochs": 2.5}}, "train.epochs"),
        ({"train": {"shards": 6}}, "a power of two from 1 to 64, the leaves of the tree that gradients are summed in, got 6"),
        ({"train": {"shards": 128}}, "train.shards"),
        ({"train": {"exactness": "bitwise", "micro_batch": 4}}, "train.micro_batch goes with train.exactness ddp, got 4"),
        ({"train": {"exactness": "bitwise", "compile": True}}, "train.compile goes with train.exactness ddp"),
        ({"train": {"exactness": "bitwise"}, "model": {"norm": "batch"}}, "set model.norm to group"),
        ({"train": {"exactness": "bitwise", "shards": 4}, "scale": {"workers": 5}}, "no shard; got 5 > 4"),
        (
            {"scale": {"gpus_per_worker": 0.5, "workers": 2}},
            "scale.gpus_per_worker 0.5 goes with one worker, scale.workers allows 2",
        ),
        ({"scale": {"gpus_per_worker": 0.5, "workers": [1, 4]}}, "Duplicate GPU detected"),
        ({"scale": {"gpus_per_worker": 0.5, "use_gpu": False}}, "no GPU is used"),
        ({"scale": {"gpus_per_worker": 2}}, "scale.gpus_per_worker"),
        ({"scale": {"gpus_per_worker": 0}}, "scale.gpus_per_worker"),
        ({"scale": {"gpus_per_worker": 0.33333}}, "in steps of 0.0001; got 0.33333, set 0.3333"),
    ],
)
def test_what_cannot_work_is_refused_with_the_rule(tree: dict[str, Any], message: str) -> None:
    assert message in refused(Experiment, tree)


def test_the_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Experiment().optim.lr = 1.0  # type: ignore[misc]


def test_set_is_typed_and_goes_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "optim: {lr: 1e-4, momentum: 0.5}")
    experiment = Experiment.from_file(path, ["optim.lr=1e-2", "model.skip=true", "optim.betas=[0.5, 0.9]"])
    assert (experiment.optim.lr, experiment.optim.momentum, experiment.model.skip) == (1e-2, 0.5, True)
    assert experiment.optim.betas == (0.5, 0.9)
    assert isinstance(experiment.optim.lr, float)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "optim: {lr: fast}")
    with pytest.raises(ConfigError, match=r"sweep\.yaml\n  optim\.lr: .*got 'fast'"):
        Experiment.from_file(path)


# --- Defaults that follow from others -----------------------------------------------------------------------------


def test_the_reference_preset_brings_its_own_defaults_and_each_can_be_set() -> None:
    model = Experiment.from_dict({"model": {"preset": "reference", "base_channels": 32}}).model
    assert (model.depth, model.base_channels, model.max_channels, model.init) == (8, 32, 512, "reference")


def test_overriding_the_preset_derives_its_defaults_anew() -> None:
    reference = Experiment.from_dict({"model": {"preset": "reference", "dropout": 0.5}})
    back = reference.with_overrides({"model.preset": "autoencoder"}).model
    assert (back.depth, back.base_channels, back.init, back.dropout) == (2, 16, "he", 0.5)
    assert Experiment().with_overrides({"model.preset": "reference"}).model.depth == 8


def test_what_was_given_survives_another_override() -> None:
    experiment = Experiment.from_dict({"model": {"preset": "reference", "depth": 2}}).with_overrides({"optim.lr": 0.1})
    assert experiment.model.depth == 2
    assert experiment.with_overrides({"model.preset": "autoencoder"}).model.depth == 2


def test_noise_follows_the_source() -> None:
    assert Experiment().data.noise == 0.1
    assert Experiment().with_overrides({"data.source": "digits"}).data.noise == 0.0
    assert Experiment.from_dict({"data": {"noise": 0}}).data.noise == 0.0


def test_an_override_is_checked_with_all_the_rest() -> None:
    with pytest.raises(ConfigError, match=r"max_channels must be at least"):
        Experiment().with_overrides({"model.base_channels": 1024})
    with pytest.raises(ConfigError, match=r"optim\.lrr: unknown key; nearest: lr"):
        Experiment().with_overrides({"optim.lrr": 1})


def test_get_reads_dotted_keys() -> None:
    experiment = Experiment.from_dict({"model": {"factory": "pkg.nets:make", "params": {"width": 3}}})
    assert experiment.get("optim.lr") == 1e-3
    assert experiment.get("model.params.width") == 3
    assert experiment.get("model.params.height") is None


# --- Sweep --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "nothing to sweep"),
        ({"space": {"optim.lrr": {"grid": [1]}}}, "space.optim.lrr: unknown key; nearest: lr"),
        ({"space": {"optim.lr": [1, 2]}}, "grid"),
        ({"space": {"optim.lr": {"grid": [1e-3, 1e-3]}}}, "twice"),
        ({"space": {"optim.lr": {"loguniform": [1, 0.1]}}}, "low must be below high"),
        ({"space": {"optim.lr": {"grid": [0.1, -1]}}}, "space.optim.lr: -1"),
        ({"space": {"model.depth": {"randint": [1, 99]}}}, "space.model.depth: 98"),
        ({"space": {"optim.lr": {"uniform": [0.1, 1]}}}, "grid needs listed values"),
        ({"space": {"train.epochs": {"grid": [1, 2]}}}, "keeps its best epoch"),
        ({"space": {"scale.workers": {"grid": [1, 2]}}}, "the clock only"),
        ({"space": {"model.params.width": {"grid": [1, 2]}}}, "model.params needs model.factory"),
        ({"space": SPACE, "search": {"num_samples": 3}}, "num_samples goes with the other searches"),
        (
            {"space": SPACE, "search": {"algorithm": "random", "num_samples": 100_001}},
            "search.num_samples: 100,001; a sweep has at most 100,000 trials",
        ),
        (
            {"space": {"optim.lr": {"grid": [n / 1000 for n in range(1, 1000)]}, "train.seed": {"randint": [0, 101]}}},
            "the grid's combinations: 100,899; a sweep has at most 100,000 trials",
        ),
        (
            {"space": SPACE, "search": {"algorithm": "random", "num_samples": 50_001, "seeds": 2}},
            "search.num_samples: 50,001 with 2 seeds each; a sweep has at most 100,000 trials",
        ),
        ({"space": SPACE, "name": "../up"}, "name"),
        ({"space": SPACE, "name": "x" * 65}, "name"),
        ({"space": SPACE, "objective": {"metric": "psnr", "mode": "min"}}, "look for the worst"),
        ({"space": SPACE, "bugdet": {}}, "nearest: budget"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused(tree: dict[str, Any], message: str) -> None:
    assert message in refused(Sweep, tree)


def test_an_unknown_setting_is_the_only_mistake_of_its_domain() -> None:
    text = refused(Sweep, {"space": {"optim.lrr": {"uniform": [0.1, 1]}, "lr": {"uniform": [0.1, 1]}}})
    assert "space.optim.lrr: unknown key; nearest: lr" in text
    assert "space.lr: no such setting; nearest: optim.lr" in text
    assert "listed values" not in text


@pytest.mark.parametrize("key", ["search.algorithm", "scheduler.name"])
def test_a_name_that_is_none_may_have_been_meant_as_ones_own(key: str) -> None:
    section, name = key.split(".")
    text = refused(Sweep, {"space": SPACE, section: {name: "tpee"}})
    assert f"{key}: Input should be '" in text
    assert "'; or a factory of your own, 'package.module:factory', got 'tpee'" in text


def test_the_objective_knows_its_direction() -> None:
    assert Sweep.from_dict({"space": SPACE}).objective.mode == "min"
    assert Sweep.from_dict({"space": SPACE, "objective": {"metric": "psnr"}}).objective.mode == "max"


def test_mistakes_in_several_domains_are_all_listed() -> None:
    message = refused(Sweep, {"space": {"optim.lrr": {"grid": [1]}, "model.depth": {"grid": [1, 99]}}})
    assert "space.optim.lrr" in message
    assert "space.model.depth: 99" in message


@pytest.mark.parametrize("key", ["micro_batch", "tensorboard", "compile", "channels_last", "checkpoint_every_s", "ledger"])
def test_no_setting_outside_the_key_can_be_swept(key: str) -> None:
    values = [8, 16] if key in ("micro_batch", "checkpoint_every_s") else [True, False]
    assert "the clock only" in refused(Sweep, {"space": {f"train.{key}": {"grid": values}}})


def test_set_reaches_the_experiment_with_or_without_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "space: {optim.lr: {grid: [1e-3]}}\nexperiment:\n")
    sweep = Sweep.from_file(path, ["train.epochs=3", "experiment.model.depth=4", "name=mine", "search.seed=7"])
    assert (sweep.experiment.train.epochs, sweep.experiment.model.depth) == (3, 4)
    assert (sweep.name, sweep.search.seed) == ("mine", 7)


def test_set_changes_and_adds_domains(tmp_path: Path) -> None:
    path = write(tmp_path, "space: {optim.lr: {grid: [1e-3]}}")
    sweep = Sweep.from_file(path, ["space.optim.lr={grid: [1e-2]}", "space.model.depth={grid: [1, 2]}"])
    assert sweep.space["optim.lr"].values() == [1e-2]
    assert sweep.space["model.depth"].values() == [1, 2]


def test_set_refuses_to_fix_what_the_space_varies(tmp_path: Path) -> None:
    path = write(tmp_path, "space: {optim.lr: {grid: [1e-3]}}")
    with pytest.raises(ConfigError, match=r"set space\.optim\.lr instead"):
        Sweep.from_file(path, ["optim.lr=1"])


@pytest.mark.parametrize(("space", "item"), [("[optim.lr]", "space.optim.lr={grid: [1]}"), ("3", "train.epochs=1")])
def test_a_space_that_is_no_mapping_is_refused_with_set_too(tmp_path: Path, space: str, item: str) -> None:
    with pytest.raises(ConfigError, match="space"):
        Sweep.from_file(write(tmp_path, f"space: {space}"), [item])


def test_short_names_stay_apart() -> None:
    space = {"train.seed": {"grid": [0, 1]}, "data.seed": {"grid": [0, 1]}, "optim.lr": {"grid": [0.1]}}
    names = Sweep.from_dict({"space": space}).short_names()
    assert names == {"train.seed": "train.seed", "data.seed": "data.seed", "optim.lr": "lr"}


def test_a_sweep_survives_the_journal() -> None:
    sweep = Sweep.from_dict({"space": {"optim.lr": {"loguniform": [1e-4, 0.1]}}, "search": {"algorithm": "random"}})
    dumped = json.loads(json.dumps(sweep.model_dump(mode="json", exclude_unset=True)))
    assert Sweep.from_dict(dumped) == sweep


def test_the_json_schema_accepts_what_raysweep_accepts() -> None:
    schema = Sweep.model_json_schema()
    tree = parse_text(default_sweep_path().read_text(encoding="utf-8"))
    jsonschema.validate(tree, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**tree, "bugdet": {}}, schema)
    assert schema["$defs"]["OptimConfig"]["properties"]["lr"]["description"].startswith("Learning rate")

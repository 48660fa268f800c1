"""A trial's key: the same for the same training, whatever the budget, the machine or the spelling; never for another one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.config import Experiment
from raysweep.store.keys import KEY_LENGTH, trial_key
from raysweep.yamlfile import parse_text

DATA = "d" * 12
PLUGIN = {"factory": "pkg.nets:make"}


def key(tree: dict[str, Any] | None = None) -> str:
    return trial_key(Experiment.from_dict(tree or {}), DATA)


def test_the_default_key_is_the_same_in_every_release() -> None:
    """Changing it makes every finished sweep train again: raise TRAINING_VERSION only when the results differ."""
    assert key() == "3f3fcef2cbd7"
    assert key({"optim": {"lr": 0.01}, "model": {"depth": 3}}) == "61b5f3b46050"


@pytest.mark.parametrize("text", ["1e-3", "0.001", "'1e-3'", "1.0e-3", "0.0010"])
def test_one_number_has_one_key(text: str) -> None:
    assert key(parse_text(f"optim: {{lr: {text}, momentum: 0.5}}")) == key({"optim": {"lr": 1e-3, "momentum": 0.5}})


def test_whole_floats_and_ints_are_one_setting() -> None:
    assert key({"model": {"depth": 3.0}}) == key({"model": {"depth": 3}})
    assert key({"model": {**PLUGIN, "params": {"width": 1.0}}}) == key({"model": {**PLUGIN, "params": {"width": 1}}})
    assert key({"optim": {"clip_norm": 0.1 + 0.2}}) == key({"optim": {"clip_norm": 0.3}})


def test_other_kinds_of_values_stay_apart() -> None:
    values = [1, True, "1", None, 2**60, 2**60 + 1, 0.1, [1], {"a": 1}]
    keys = {key({"model": {**PLUGIN, "params": {"width": value}}}) for value in values}
    assert len(keys) == len(values)


@pytest.mark.parametrize(
    "tree",
    [
        {"train": {"epochs": 100}},
        {"train": {"tensorboard": True, "compile": True, "channels_last": False, "micro_batch": 4}},
        {"train": {"checkpoint_every_epochs": 5, "checkpoint_every_s": None, "ledger": True}},
        {"train": {"exactness": "ddp", "shards": 16}},
        {"scale": {"workers": 4, "use_gpu": True, "cpus_per_worker": 2, "max_failures": 0, "poll_s": 1}},
        {"model": {"depth": 2}},
    ],
)
def test_budget_scale_and_what_only_observes_are_outside(tree: dict[str, Any]) -> None:
    assert key(tree) == key()


def test_paths_are_outside_because_the_content_is_inside() -> None:
    folders = [{"data": {"source": "folder", "path": path, "target_path": path}} for path in ("a", "b/c")]
    assert key(folders[0]) == key(folders[1])
    assert trial_key(Experiment(), "one") != trial_key(Experiment(), "two")
    assert trial_key(Experiment(), DATA, "code one") != trial_key(Experiment(), DATA, "code two")
    assert trial_key(Experiment(), "a", "b") != trial_key(Experiment(), "ab", "")


@pytest.mark.parametrize(
    "tree",
    [
        {"train": {"seed": 1}},
        {"data": {"seed": 1}},
        {"data": {"noise": 0.2}},
        {"data": {"count": 100}},
        {"train": {"batch_size": 32}},
        {"train": {"reduction": "sum"}},
        {"train": {"precision": "off"}},
        {"train": {"exactness": "bitwise"}},
        {"optim": {"lr": 0.1}},
        {"optim": {"betas": [0.9, 0.99]}},
        {"model": {"depth": 3}},
        {"model": {"preset": "reference"}},
        {"model": {"skip": True}},
        {"model": PLUGIN},
    ],
)
def test_seed_noise_model_and_optimizer_are_inside(tree: dict[str, Any]) -> None:
    assert key(tree) != key()


def test_no_noise_is_not_the_default_noise() -> None:
    assert key({"data": {"noise": 0.0}}) != key()


def test_a_preset_is_what_it_stands_for() -> None:
    spelled_out = {"depth": 8, "base_channels": 64, "max_channels": 512, "init": "reference"}
    assert key({"model": {"preset": "reference"}}) == key({"model": spelled_out})


def test_the_horizon_of_cosine_is_inside_and_its_budget_is_not() -> None:
    def cosine(epochs: int, horizon: int | None = None) -> str:
        return key({"optim": {"schedule": "cosine", "schedule_epochs": horizon}, "train": {"epochs": epochs}})

    assert cosine(8) != cosine(16)
    assert cosine(8) == cosine(8, 8) == cosine(16, 8)
    assert cosine(8, 8) != cosine(8, 16)


def test_settings_that_a_plugin_ignores_do_not_count() -> None:
    assert key({"model": {**PLUGIN, "depth": 5}}) == key({"model": PLUGIN})


def test_the_order_of_keys_does_not_count() -> None:
    one = {"model": {**PLUGIN, "params": {"a": 1, "b": 2}}, "optim": {"lr": 0.1, "momentum": 0.5}}
    other = {"optim": {"momentum": 0.5, "lr": 0.1}, "model": {"params": {"b": 2, "a": 1}, **PLUGIN}}
    assert key(one) == key(other)


CHOICES: dict[str, list[Any]] = {
    "model.depth": [1, 2, 3, 8],
    "model.base_channels": [16, 64],
    "model.init": ["he", "reference"],
    "model.preset": ["autoencoder", "reference"],
    "model.skip": [False, True],
    "data.noise": [0.1, 0.25],
    "data.count": [None, 100],
    "data.seed": [0, 1],
    "optim.lr": [1e-3, 0.001, 1e-2, 0.0100001],
    "optim.momentum": [0, 0.9],
    "optim.schedule": ["constant", "cosine"],
    "train.seed": [0, 1],
    "train.batch_size": [32, 64],
    "train.epochs": [8, 16],
    "train.exactness": ["ddp", "bitwise"],
    "train.shards": [8, 4],
    "train.channels_last": [False, True],
    "scale.workers": [1, 2],
}
OUTSIDE = {"model.preset", "train.epochs", "train.channels_last", "train.shards", "scale.workers"}
experiments = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHOICES.items()}).map(
    Experiment().with_overrides
)


def meaning(experiment: Experiment) -> list[Any]:
    values = [experiment.get(name) for name in CHOICES if name not in OUTSIDE]
    shards = experiment.train.shards if experiment.train.exactness == "bitwise" else None
    return [*values, experiment.train.epochs if experiment.optim.schedule == "cosine" else None, shards]


@given(experiments, experiments)
def test_two_trainings_share_a_key_only_if_they_are_the_same(one: Experiment, other: Experiment) -> None:
    assert (trial_key(one, DATA) == trial_key(other, DATA)) == (meaning(one) == meaning(other))


@given(experiments, st.sampled_from(sorted(CHOICES)), st.data())
def test_one_changed_setting_changes_the_key_unless_it_is_outside(one: Experiment, name: str, data: st.DataObject) -> None:
    other = one.with_overrides({name: data.draw(st.sampled_from(CHOICES[name]))})
    assert (trial_key(one, DATA) == trial_key(other, DATA)) == (meaning(one) == meaning(other))


@given(experiments)
def test_a_key_is_short_and_follows_the_values_alone(experiment: Experiment) -> None:
    text = trial_key(experiment, DATA)
    assert len(text) == KEY_LENGTH
    assert set(text) <= set("0123456789abcdef")
    assert trial_key(Experiment.from_dict(experiment.model_dump(mode="json")), DATA) == text

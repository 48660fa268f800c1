"""A trial's key: the same for the same training, whatever the budget, the machine or the spelling; never for another one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.config import Experiment
from raysweep.space import parse
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


# --- Any settings -----------------------------------------------------------------------------------------------------


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats as people and domains write them, with nine digits at most."""
    return st.floats(low, high).map(lambda value: min(max(float(f"{value:.9g}"), low), high))


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "model.depth": st.integers(1, 10),
    "model.base_channels": st.integers(1, 64),
    "model.max_channels": st.integers(64, 4096),
    "model.dropout": numbers(0, 0.99),
    "model.activation": st.sampled_from(["relu", "elu", "gelu"]),
    "model.kernel_size": st.sampled_from([1, 3, 5]),
    "data.noise": numbers(0, 1),
    "data.val_fraction": numbers(0.01, 0.9),
    "data.seed": st.integers(0, 2**31 - 1),
    "data.count": st.none() | st.integers(10, 10**6),
    "optim.lr": numbers(1e-9, 10),
    "optim.weight_decay": numbers(0, 10),
    "optim.clip_norm": st.none() | numbers(1e-3, 1e9),
    "optim.betas": st.tuples(numbers(0, 0.99), numbers(0, 0.99)),
    "optim.warmup_steps": st.integers(0, 10**6),
    "train.seed": st.integers(0, 2**31 - 1),
    "train.batch_size": st.integers(16, 4096),
}
DEFAULTS = {name: Experiment().get(name) for name in SETTINGS}
settings_drawn = st.fixed_dictionaries(
    {}, optional={name: strategy | st.just(DEFAULTS[name]) for name, strategy in SETTINGS.items()}
)
OUTSIDE_KEYS: dict[str, st.SearchStrategy[Any]] = {
    "train.epochs": st.integers(1, 500),
    "train.micro_batch": st.none() | st.integers(1, 64),
    "train.checkpoint_every_s": st.none() | st.floats(1, 100),
    "train.compile": st.booleans(),
    "train.tensorboard": st.booleans(),
    "scale.workers": st.integers(1, 16) | st.just([1, 8]),
    "scale.poll_s": st.floats(0.1, 3),
}


def whole(settings: dict[str, Any]) -> dict[str, Any]:
    return {**DEFAULTS, **settings}


SEEN: dict[str, dict[str, Any]] = {}
"""What each key of this run of the tests stands for."""


@given(settings_drawn, settings_drawn)
def test_different_settings_never_share_a_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    for settings in (one, other, {**one, **other}):
        found = trial_key(Experiment().with_overrides(settings), DATA)
        assert SEEN.setdefault(found, whole(settings)) == whole(settings)
    assert (trial_key(Experiment().with_overrides(one), DATA) == trial_key(Experiment().with_overrides(other), DATA)) == (
        whole(one) == whole(other)
    )


@given(st.sampled_from(["optim.lr", "optim.weight_decay", "data.noise"]), numbers(1e-6, 1), st.integers(1, 9))
def test_numbers_that_differ_in_their_ninth_digit_are_different(name: str, value: float, steps: int) -> None:
    other = value * (1 + steps * 1e-9)
    assert trial_key(Experiment().with_overrides({name: value}), DATA) != trial_key(
        Experiment().with_overrides({name: other}), DATA
    )


def spelled(value: Any, data: st.DataObject) -> str:
    """A value as YAML, written in one of many ways, with the noise that adding and multiplying floats leaves."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spelled(v, data) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return data.draw(st.sampled_from([value, f"'{value}'", f'"{value}"']))
    if isinstance(value, int):
        return data.draw(st.sampled_from([str(value), f"{value}.0", f"'{value}'"]))
    noisy = value * data.draw(st.sampled_from([1.0, 1 + 4e-16, 1 - 4e-16, 1 + 1e-15]))
    ways = [repr(noisy), f"{noisy:.17g}", f"{noisy:.16e}", f"'{noisy!r}'"]
    return data.draw(st.sampled_from([*ways, str(int(value))] if value.is_integer() else ways))


@given(settings_drawn, st.fixed_dictionaries({}, optional=OUTSIDE_KEYS), st.data())
def test_the_same_settings_share_a_key_however_they_are_written(
    settings: dict[str, Any], outside: dict[str, Any], data: st.DataObject
) -> None:
    lines: dict[str, list[str]] = {}
    for name, value in data.draw(st.permutations([*settings.items(), *outside.items()])):
        section, _, last = name.partition(".")
        lines.setdefault(section, []).append(f"  {last}: {spelled(value, data) if name in settings else json.dumps(value)}")
    text = "\n".join("\n".join([f"{section}:", *below]) for section, below in lines.items())
    written = Experiment.from_dict(parse_text(text) or {})
    assert trial_key(written, DATA) == trial_key(Experiment().with_overrides(settings), DATA), text


@given(settings_drawn, st.sampled_from(["train.seed", "data.seed"]), st.integers(0, 2**31 - 1))
def test_another_seed_is_another_trial(settings: dict[str, Any], name: str, seed: int) -> None:
    before, after = (Experiment().with_overrides({**settings, name: s}) for s in (settings.get(name, 0), seed))
    assert (trial_key(before, DATA) == trial_key(after, DATA)) == (settings.get(name, 0) == seed)


@given(st.integers(1, 40), st.sampled_from([0.1, 0.05, 0.7, 0.3, 1e-4]))
def test_steps_that_were_added_up_are_those_that_were_multiplied(count: int, step: float) -> None:
    """0.1 + 0.2 is not 0.3, and ten times 0.1 added up is not 1; values of a quniform domain have no such noise."""
    summed = sum([step] * count)
    keys = {key({"optim": {"clip_norm": value}}) for value in (summed, step * count)}
    domain = parse({"quniform": [step, step * 50, step]})
    (listed,) = [value for value in domain.values() or [] if abs(value - summed) < step / 2]
    assert keys == {key({"optim": {"clip_norm": listed}})}


def test_a_default_with_noise_is_the_default() -> None:
    noisy = {"optim": {"lr": 1e-3 * (1 + 4e-16), "betas": [0.9, 0.999 + 1e-16]}, "data": {"val_fraction": 0.2 + 3e-17}}
    assert key(noisy) == key()

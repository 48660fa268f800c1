"""Conditions of domains and constraints: read and refused with the sweep, before anything starts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.config import Sweep
from raysweep.errors import ConfigError
from raysweep.experiment import Experiment
from raysweep.yamlfile import parse_text

DEPTH = {"model.depth": {"grid": [1, 2, 4]}}
DROPOUT = {"model.dropout": {"grid": [0.1, 0.2], "when": "model.depth > 3"}}


def sweep(space: dict[str, Any], *constraints: str, **settings: Any) -> Sweep:
    return Sweep.from_dict({"space": space, "constraints": list(constraints), **settings})


def refusal(space: dict[str, Any], *constraints: str, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        sweep(space, *constraints, **settings)
    return str(caught.value)


# --- Conditions -------------------------------------------------------------------------------------------------------


def test_a_setting_whose_condition_is_not_met_is_left_out() -> None:
    rules = sweep({**DROPOUT, **DEPTH}).rules()
    assert rules.order == ("model.depth", "model.dropout"), "what a condition names is decided first"
    assert rules.active({"model.dropout": 0.1, "model.depth": 4}) == {"model.dropout": 0.1, "model.depth": 4}
    assert rules.active({"model.dropout": 0.1, "model.depth": 2}) == {"model.depth": 2}
    assert list(rules.active({"model.depth": 4, "model.dropout": 0.1})) == ["model.dropout", "model.depth"], "the file's order"


def test_only_settings_of_a_trial_are_asked_for() -> None:
    asked: list[str] = []

    def pick(key: str) -> Any:
        asked.append(key)
        return 2

    assert sweep({**DROPOUT, **DEPTH}).rules().choose(pick) == {"model.depth": 2}
    assert asked == ["model.depth"]


def test_a_condition_may_name_a_setting_that_is_not_swept() -> None:
    space = {"optim.lr": {"grid": [1e-3]}, "model.dropout": {"grid": [0.1], "when": "model.depth > 3"}}
    assert "space.model.dropout.when: model.depth > 3 is met by no combination of the space" in refusal(space)
    rules = sweep(space, experiment={"model": {"depth": 5}}).rules()
    assert set(rules.active({"optim.lr": 1e-3, "model.dropout": 0.1})) == {"optim.lr", "model.dropout"}


def test_a_setting_that_is_left_out_counts_with_the_experiments_value() -> None:
    space = {
        **DEPTH,
        "model.norm": {"choice": ["none", "group"], "when": "model.depth == 4"},
        "model.dropout": {"grid": [0.1], "when": "model.norm == 'none'"},
    }
    values = {"model.depth": 2, "model.norm": "none", "model.dropout": 0.1}
    assert set(sweep(space).rules().active(values)) == {"model.depth", "model.dropout"}
    assert set(sweep(space, experiment={"model": {"norm": "batch"}}).rules().active(values)) == {"model.depth"}


def test_defaults_that_follow_from_a_swept_setting_are_seen() -> None:
    space = {
        "optim.lr": {"grid": [1e-3], "when": "model.depth > 3"},
        "model.preset": {"choice": ["autoencoder", "reference"]},
    }
    rules = sweep(space).rules()
    assert rules.order == ("model.preset", "optim.lr")
    assert set(rules.active({"optim.lr": 1e-3, "model.preset": "reference"})) == {"optim.lr", "model.preset"}
    assert set(rules.active({"optim.lr": 1e-3, "model.preset": "autoencoder"})) == {"model.preset"}
    back = sweep(space, experiment={"model": {"preset": "reference"}}).rules()
    assert set(back.active({"optim.lr": 1e-3, "model.preset": "autoencoder"})) == {"model.preset"}
    given = sweep(space, experiment={"model": {"depth": 5}}).rules()
    assert set(given.active({"optim.lr": 1e-3, "model.preset": "autoencoder"})) == {"optim.lr", "model.preset"}


PLAIN = {
    "model.depth": st.integers(1, 6),
    "model.preset": st.sampled_from(["autoencoder", "reference"]),
    "model.base_channels": st.sampled_from([8, 16]),
    "data.source": st.sampled_from(["photos", "digits"]),
    "data.noise": st.sampled_from([0.0, 0.3]),
    "optim.betas": st.sampled_from([[0.8, 0.9], [0.9, 0.99]]),
    "optim.lr": st.sampled_from(["1e-3", 0.001, 1]),
}
some = st.fixed_dictionaries({}, optional=PLAIN)


@given(some, some, st.sampled_from([*PLAIN, "model.init", "model.max_channels", "train.epochs"]))
def test_an_expression_sees_what_the_trial_would_have(base: dict[str, Any], overrides: dict[str, Any], key: str) -> None:
    experiment = Experiment().with_overrides(base)
    rules = Sweep.from_dict({"experiment": experiment.model_dump(exclude_unset=True), "space": DEPTH}).rules()
    seen, there = rules._value(key, overrides), experiment.with_overrides(overrides).get(key)
    assert seen == (list(there) if isinstance(there, tuple) else there)


def test_a_setting_that_goes_with_another_one_only_can_be_swept_where_it_does() -> None:
    space = {
        "optim.schedule": {"choice": ["constant", "cosine"]},
        "optim.schedule_epochs": {"choice": [4, 8], "when": "optim.schedule == 'cosine'"},
    }
    sweep(space)
    bad = {**space, "optim.schedule_epochs": {"choice": [4, -8], "when": "optim.schedule == 'cosine'"}}
    assert "space.optim.schedule_epochs: -8: " in refusal(bad)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.dropout > 0"}},
            ".when: names model.dropout itself",
        ),
        (
            {"model.depth": {"grid": [1, 2], "when": "model.dropout > 0"}, **DROPOUT},
            "in a circle: model.depth -> model.dropout -> model.depth",
        ),
        (
            {**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.dpeth > 3"}},
            "model.dpeth: unknown key; nearest: depth",
        ),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "depth > 3"}}, "depth: no such setting; nearest: model.depth"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "modle.depth > 3"}}, "no such setting; nearest: model.depth"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.norm == group"}}, "texts stand in quotes"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.depth >"}}, "space.model.dropout.when: 'model.depth >' is no"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.depth > 4"}}, "is met by no combination of the space"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.depth"}}, "must be true or false"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": 3}}, "when takes a condition in quotes"),
        ({**DEPTH, "model.dropout": {"grid": [0.1], "when": " "}}, "when takes a condition in quotes"),
        ({**DEPTH, "model.dropout": {"when": "model.depth > 3"}}, "a domain is a mapping with one key"),
        ({**DEPTH, "model.dropout": {"grid": [1], "choice": [1], "when": "true"}}, "a domain is a mapping with one key"),
        ({**DEPTH, "model.dropout": {"grid": [7], "when": "model.depth > 3"}}, "space.model.dropout: 7: "),
    ],
)
def test_conditions_that_cannot_work_are_refused(space: dict[str, Any], message: str) -> None:
    assert message in refusal(space)


def test_a_condition_on_the_middle_of_a_range_is_not_taken_for_one_that_never_holds() -> None:
    space = {
        "optim.lr": {"uniform": [0.0001, 1]},
        "model.skip": {"choice": [True, False], "when": "0.3 < optim.lr < 0.301"},
        "model.dropout": {"choice": [0.1], "when": "model.skip"},
    }
    sweep(space, search={"algorithm": "random"})


# --- Constraints ------------------------------------------------------------------------------------------------------


def test_a_broken_constraint_is_named_with_the_values() -> None:
    rules = sweep(DEPTH, "model.depth * model.base_channels <= 32", "model.depth != 1 or optim.lr < 1").rules()
    assert rules.broken({"model.depth": 2}) == ""
    text = "the constraint model.depth * model.base_channels <= 32 is not met: model.depth 4, model.base_channels 16"
    assert rules.broken({"model.depth": 4}) == text


def test_a_constraint_that_cannot_be_evaluated_for_a_combination_refuses_it() -> None:
    space = {"optim.lr": {"uniform": [0.0001, 1]}}
    rules = sweep(space, "1 / (optim.lr - 0.3) > 0 or true", search={"algorithm": "random"}).rules()
    assert "cannot be evaluated for optim.lr 0.3: " in rules.broken({"optim.lr": 0.3})


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("model.dpeth < 3", "constraints.0: model.dpeth: unknown key; nearest: depth"),
        ("model.depth < 3 3", "constraints.0: 'model.depth < 3 3' is no expression: invalid syntax"),
        ("model.depth * 3", "must be true or false, such as a comparison; for model.depth 1 it is 3"),
        ("1 / (model.depth - 4) < 9", "cannot be evaluated for model.depth 4: division by zero"),
        ("model.depth > 4", "constraints.0: model.depth > 4 is met by no combination of the space"),
        ("optim.lr > 1", "is met by no combination"),
        ("model.norm > model.depth", "'>' not supported"),
    ],
)
def test_constraints_that_cannot_work_are_refused(constraint: str, message: str) -> None:
    assert message in refusal(DEPTH, constraint)


def test_all_mistakes_are_told_at_once() -> None:
    space = {**DEPTH, "model.dropout": {"grid": [0.1], "when": "model.dpeth > 3"}, "optim.lr": {"grid": [-1]}}
    message = refusal(space, "model.depth <", "trian.seed > 1")
    assert "space.model.dropout.when" in message
    assert "constraints.0" in message
    assert "constraints.1: trian.seed" in message
    assert "space.optim.lr: -1" in message


# --- Points to try first ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"model.depth": 4, "model.dropout": 0.1}, ""),
        ({"model.depth": 2}, ""),
        ({"model.depth": 4}, "search.start_with.0: model.dropout is missing"),
        ({"model.depth": 2, "model.dropout": 0.1}, "model.dropout has no place: its condition (model.depth > 3) is not met"),
        ({"model.dropout": 0.1}, "search.start_with.0: model.depth is missing"),
        ({"model.depth": 3, "model.norm": "none"}, "model.norm is not in the space"),
        ({"model.depth": 1}, "search.start_with.0: the constraint model.depth > 1 is not met: model.depth 1"),
    ],
)
def test_a_point_has_the_settings_that_a_trial_has(point: dict[str, Any], message: str) -> None:
    space = {**DEPTH, **DROPOUT}
    if message:
        assert message in refusal(space, "model.depth > 1", search={"start_with": [point]})
    else:
        sweep(space, "model.depth > 1", search={"start_with": [point]})


# --- Written and read -------------------------------------------------------------------------------------------------

FILE = """
space:
  model.depth: {choice: [1, 2, 4]}
  model.dropout: {uniform: [0, 0.5], when: "model.depth > 3"}
constraints: ["model.depth * model.base_channels <= 256"]
search: {algorithm: random}
"""


def test_a_sweep_with_conditions_survives_the_journal() -> None:
    made = Sweep.from_dict(parse_text(FILE))
    dumped = json.loads(json.dumps(made.model_dump(mode="json", exclude_unset=True)))
    assert dumped["space"]["model.dropout"] == {"uniform": [0.0, 0.5], "when": "model.depth > 3"}
    assert Sweep.from_dict(dumped) == made


def test_the_schema_takes_conditions_and_constraints_and_nothing_else() -> None:
    schema, tree = Sweep.model_json_schema(), parse_text(FILE)
    jsonschema.validate(tree, schema)
    for bad in (
        {"when": "true"},
        {"uniform": [0, 1], "choice": [1]},
        {"uniform": [0, 1], "when": 3},
        {"uniform": [0, 1], "wen": "x"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**tree, "space": {"model.dropout": bad}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**tree, "constraints": "model.depth < 3"}, schema)

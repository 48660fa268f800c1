"""What a YAML file and `--set` mean: numbers as people write them, nothing silently dropped, errors that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.config import Experiment, Sweep
from raysweep.errors import ConfigError
from raysweep.yamlfile import merge, parse_set, parse_text, read_mapping, unknown_key, valid_names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E-4", 1e-4),
        ("+1e3", 1e3),
        ("-1.5e-3", -1.5e-3),
        (".5", 0.5),
        ("1.", 1.0),
        ("1.e-2", 0.01),
        ("5e0", 5.0),
    ],
)
def test_floats_are_floats_as_people_write_them(text: str, value: float) -> None:
    parsed = parse_text(text)
    assert parsed == value
    assert isinstance(parsed, float)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0x10", 16),
        ("1:3", "1:3"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("'1e-4'", "1e-4"),
    ],
)
def test_other_scalars(text: str, value: object) -> None:
    parsed = parse_text(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["off", "on", "yes", "no", "e5", "1e", ".", "1.2.3", "none", "1e-4x"])
def test_words_stay_text(text: str) -> None:
    assert parse_text(text) == text


def test_every_setting_value_can_be_written_in_yaml() -> None:
    assert Experiment.from_dict(parse_text("train: {precision: off}")).train.precision == "off"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_comes_back(value: float) -> None:
    assert parse_text(f"{value!r}") == value
    assert parse_text(f"{value:e}") == float(f"{value:e}")


def test_a_key_that_stands_twice_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 3: the key 'lr' stands twice"):
        parse_text("optim:\n  lr: 1\n  lr: 2\n")


def test_anchors_and_merge_keys_work() -> None:
    tree = parse_text("base: &base {lr: 1e-4, name: sgd}\noptim: {<<: *base, lr: 0.1}")
    assert tree["optim"] == {"lr": 0.1, "name": "sgd"}


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1, 2", "not valid YAML"),
        (b"a: \xff", "not UTF-8"),
        (b"- 1\n- 2\n", "holds a list"),
        (b"text", "holds a str"),
        (b"{[1]: 2}", "not valid YAML"),
        (b"a: 1\na: 2\n", "line 2: the key 'a' stands twice"),
        (b"a: !!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.yaml: No such file"):
        read_mapping(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_mapping(tmp_path)


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    assert read_mapping(write(tmp_path, b"# nothing yet\n")) == {}


def test_set_is_typed() -> None:
    items = ["a=1", "b=1e-3", "c=true", "d=text", "e=[1, 2]", "f=", " g = x=y", "h={k: 2}"]
    assert parse_set(items) == {
        "a": 1, "b": 1e-3, "c": True, "d": "text", "e": [1, 2], "f": None, "g": "x=y", "h": {"k": 2},
    }  # fmt: skip
    assert isinstance(parse_set(["b=1e-3"])["b"], float)


@pytest.mark.parametrize("item", ["lr", "=3", " =3", "a=[1", "a={[1]: 2}", "a={k: 1, k: 2}"])
def test_a_broken_set_is_refused(item: str) -> None:
    with pytest.raises(ConfigError):
        parse_set([item])


def test_merge_copies_and_goes_deep() -> None:
    tree = {"optim": {"lr": 1, "name": "adam"}, "data": None}
    merged = merge(tree, {"optim.lr": 2, "data.path": "x", "model.params.width": 3})
    assert merged == {"optim": {"lr": 2, "name": "adam"}, "data": {"path": "x"}, "model": {"params": {"width": 3}}}
    assert tree == {"optim": {"lr": 1, "name": "adam"}, "data": None}


def test_merge_refuses_to_go_through_a_value() -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr\.x: optim\.lr holds 0\.1"):
        merge({"optim": {"lr": 0.1}}, {"optim.lr.x": 1})


def test_valid_names_follow_the_sections() -> None:
    assert "lr" in valid_names(Experiment, ["optim"])
    assert valid_names(Experiment, []) == ["model", "data", "optim", "train", "scale"]
    assert valid_names(Experiment, ["optim", "lr"]) == []


def test_an_unknown_key_names_the_nearest() -> None:
    assert unknown_key("optim.learning", ["lr", "momentum"]) == "optim.learning: unknown key; valid: lr, momentum"
    assert "nearest: momentum" in unknown_key("optim.momentun", ["lr", "momentum"])


@pytest.mark.parametrize(
    ("root", "tree", "message"),
    [
        (Sweep, {"scale": {"workers": 2}}, "scale: unknown key here; it is experiment.scale"),
        (Sweep, {"seeds": 3}, "seeds: unknown key here; it is search.seeds"),
        (Sweep, {"experiment": {"search": {}}}, "experiment.search: unknown key here; it is search"),
        (Experiment, {"lr": 0.1}, "lr: unknown key here; it is optim.lr"),
        (Experiment, {"train": {"lr": 0.1}}, "train.lr: unknown key here; it is optim.lr"),
        (Experiment, {"train": {"name": "adam"}}, "train.name: unknown key here; it is optim.name"),
        (
            Sweep,
            {"experiment": {"name": "adam"}},
            "experiment.name: unknown key; valid: model",
        ),  # or the sweep's, or the optimizer's
    ],
)
def test_a_key_at_a_wrong_place_is_told_its_right_one(
    root: type[Sweep] | type[Experiment], tree: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        root.from_dict(tree)
    assert f"\n  {message}" in str(caught.value)

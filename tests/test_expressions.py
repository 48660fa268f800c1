"""Expressions: they mean what they say, and everything that is none is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.expressions import Expression

VALUES = {
    "model.depth": 4,
    "model.base_channels": 16,
    "optim.lr": 1e-3,
    "model.norm": "group",
    "model.skip": True,
    "data.size": None,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("model.depth > 3", True),
        ("1 < model.depth <= 3", False),
        ("model.depth * model.base_channels <= 64", True),
        ("model.depth ** 2 - 3 * model.depth // 2 + 7 % 4 == 13", True),
        ("model.base_channels / model.depth == 4.0", True),
        ("model.norm == 'group' and not model.skip", False),
        ("model.norm in ['batch', 'group'] or model.skip", True),
        ("model.depth not in [1, 2]", True),
        ("data.size == null and model.skip == true and model.skip != false", True),
        ("min(model.depth, 2) + max(1, 5, model.depth) == 7", True),
        ("log2(model.base_channels) == 4 and log10(optim.lr) == -3", True),
        ("abs(-model.depth) == +4", True),
        ("data.size == None and model.skip != False", True),
    ],
)
def test_expressions_mean_what_they_say(text: str, value: Any) -> None:
    expression = Expression(text)
    assert expression.value({name: VALUES[name] for name in expression.names}) is value


def test_the_names_are_the_dotted_keys_each_once() -> None:
    text = "model.depth > 3 and model.params.block.width * model.depth < max(9, optim.lr) or true"
    assert Expression(text).names == ("model.depth", "model.params.block.width", "optim.lr")


@given(st.integers(-50, 50), st.integers(-50, 50), st.sampled_from(["<", "<=", "==", "!=", ">", ">="]))
def test_comparisons_are_pythons(a: int, b: int, sign: str) -> None:
    assert Expression(f"x.a {sign} x.b").value({"x.a": a, "x.b": b}) is eval(f"{a} {sign} {b}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.depth >", "is no expression: invalid syntax at its end"),
        ("model.depth = 3", "is no expression: invalid syntax at character 13"),
        ("model.depth > 3)", r"is no expression: unmatched '\)' at character 16"),
        ("", "is no expression"),
        ("a\x00b", "is no expression"),
        ("model.depth.bit_length() > 3", r"model.depth.bit_length\(\) at character 1 is not allowed: an expression has"),
        ("open('x')", r"open\('x'\) at character 1 is not allowed"),
        ("1 < min(2, key=abs)", "at character 5 is not allowed"),
        ("[x for x in [1]]", "is not allowed"),
        ("model.depth if true else 3", "is not allowed"),
        ("'abc'.upper", "is not allowed"),
        ("model.sizes[0] > 1", r"model.sizes\[0\] at character 1 is not allowed"),
        ("(lambda: 1)", "is not allowed"),
        ("f'{model.depth}' == '3'", "is not allowed"),
        ("2j == model.depth", "2j at character 1 is not allowed"),
        ("{1: 2}", "is not allowed"),
        ("(x := 3) > 2", "is not allowed"),
        ("model.depth & 1", r"an operator that is not known here \(BitAnd\)"),
        ("model.depth is 3", r"an operator that is not known here \(Is\)"),
        ("~model.depth == 1", r"an operator that is not known here \(Invert\)"),
        ("-" * 1990 + "1", "is no expression: it is nested too deeply"),
        ("1 < " * 1000 + "1", "is no expression: it has more than 2000 characters"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / (model.depth - 4) > 0", "cannot be evaluated for model.depth 4: division by zero"),
        ("model.norm > 3", "cannot be evaluated for model.norm 'group': '>' not supported"),
        ("data.size < 3", "cannot be evaluated for data.size null"),
        ("log2(model.depth - 9) > 0", "cannot be evaluated for model.depth 4"),
        ("9 ** 9 ** 9 ** model.depth > 1", "cannot be evaluated for model.depth 4"),
        ("'a' * 999999999 == model.norm", "cannot be evaluated for model.norm 'group'"),
        ("model.norm in model.skip", "cannot be evaluated for model.norm 'group', model.skip true"),
    ],
)
def test_what_cannot_be_evaluated_says_for_which_values(text: str, message: str) -> None:
    expression = Expression(text)
    with pytest.raises(ValueError, match=message):
        expression.value({name: VALUES[name] for name in expression.names})

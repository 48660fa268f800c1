"""Expressions over settings, `model.depth * model.base_channels <= 256`: read, checked and evaluated.

What a sweep does with them is conditions.py.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from typing import Any

from simpleeval import EvalWithCompoundTypes, InvalidExpression, safe_add, safe_mult

FUNCTIONS = {"min": min, "max": max, "abs": abs, "log2": math.log2, "log10": math.log10}
_MAX_LENGTH = 2000
_CONSTANTS = {"true": True, "false": False, "null": None}
"""YAML's words, beside Python's."""
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: safe_add,
    ast.Sub: operator.sub,
    ast.Mult: safe_mult,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # of floats: a huge power overflows at once, where whole numbers would be worked out
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_NODES = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple)
_ALLOWED = (
    "an expression has settings, numbers, 'strings', true, false, null, [lists], comparisons, in, and, or, not, "
    f"+ - * / // % ** and {', '.join(FUNCTIONS)}"
)


class Expression:
    """One expression.

    Attributes:
        text: as it was written.
        names: the dotted keys in it, each once, in their order.

    Raises:
        ValueError: the text is no expression: what is wrong, and where.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        if len(self.text) > _MAX_LENGTH or "\0" in self.text:
            raise ValueError(f"{self.text[:60]!r}... is no expression: it has more than {_MAX_LENGTH} characters, or a null byte")
        reader = _Reader(self.text)
        try:
            self._tree = reader.visit(ast.parse(self.text, mode="eval").body)
        except SyntaxError as error:
            place = f"character {error.offset}" if error.offset else "its end"
            raise ValueError(f"{self.text!r} is no expression: {error.msg} at {place}") from None
        except (RecursionError, MemoryError):
            raise ValueError(f"{self.text[:60]!r}... is no expression: it is nested too deeply") from None
        self.names = tuple(dict.fromkeys(reader.names))
        self._evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions=dict(FUNCTIONS), names={})

    def value(self, values: Mapping[str, Any]) -> Any:
        """What the expression is for these values, which hold one for each of `names`.

        Raises:
            ValueError: it cannot be evaluated for them, such as a division by zero, or `<` between a number and a text.
        """
        self._evaluator.names = values
        try:
            return self._evaluator.eval(self.text, self._tree)
        except (ArithmeticError, TypeError, ValueError, InvalidExpression, RecursionError) as error:
            raise ValueError(f"{self.text} cannot be evaluated for {shown(values)}: {error}") from None


class _Reader(ast.NodeTransformer):
    """Makes one name of `model.depth`, notes it, and refuses everything that is not listed."""

    def __init__(self, text: str) -> None:
        self.names: list[str] = []
        self._text = text

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name | ast.Attribute):
            return self._setting(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
            raise self._refusal(node)
        if isinstance(node, ast.expr) and not isinstance(node, _NODES):
            raise self._refusal(node)
        if isinstance(node, ast.operator | ast.unaryop | ast.cmpop) and type(node) not in _OPERATORS:
            raise ValueError(f"{self._text!r} has an operator that is not known here ({type(node).__name__}): {_ALLOWED}")
        return super().generic_visit(node)

    def _setting(self, node: ast.Name | ast.Attribute) -> ast.expr:
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise self._refusal(node)
        name = ".".join([inner.id, *reversed(parts)])
        if name in _CONSTANTS:
            return ast.copy_location(ast.Constant(_CONSTANTS[name]), node)
        self.names.append(name)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
            raise self._refusal(node)
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def _refusal(self, node: ast.expr) -> ValueError:
        part = ast.get_source_segment(self._text, node) or type(node).__name__
        return ValueError(f"{self._text!r}: {part} at character {node.col_offset + 1} is not allowed: {_ALLOWED}")


def shown(values: Mapping[str, Any]) -> str:
    """`model.depth 4, optim.name 'adam'`."""
    return ", ".join(f"{name} {_CONSTANT_NAMES.get(repr(value), repr(value))}" for name, value in values.items())


_CONSTANT_NAMES = {repr(value): name for name, value in _CONSTANTS.items()}

"""Search-space domains: what values one setting may take in a sweep, written `{loguniform: [1e-4, 1e-1]}`.

How a searcher walks through them lives in tune/search.py.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

if TYPE_CHECKING:
    import numpy as np

_SHAPES = {
    "uniform": "[low, high]",
    "loguniform": "[low, high]",
    "randint": "[low, high] (high itself is left out)",
    "quniform": "[low, high, step]",
    "choice": "[value, value, ...]",
    "grid": "[value, value, ...]",
}
KINDS = tuple(_SHAPES)
"""The names of the domains, as sweep files write them."""

_SAMPLE_DIGITS = 6
_MAX_ENUMERATED = 10_000


def significant(value: float, digits: int) -> float:
    """`value` rounded to `digits` significant digits, so that 0.1 + 0.2 and 0.3 are one setting."""
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Domain:
    """One domain. `args` are (low, high), (low, high, step) or the listed values; they are checked when it is made.

    Raises:
        ValueError: the bounds are swapped, empty, not finite or (loguniform) not positive.
    """

    kind: str
    args: tuple[Any, ...]
    when: str = ""
    """A condition; where it is not met the setting is not varied. conditions.py reads it."""

    def __post_init__(self) -> None:
        if self.kind in ("choice", "grid"):
            self._check_values()
        else:
            object.__setattr__(self, "args", self._checked_bounds())

    def _check_values(self) -> None:
        if not self.args:
            raise ValueError(f"{self.kind} needs at least one value")
        seen: list[Any] = []
        for value in self.args:
            if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in seen):
                raise ValueError(f"{self.kind} lists {value!r} twice; each value would be trained twice")
            seen.append(value)

    def _checked_bounds(self) -> tuple[float, ...]:
        number = 3 if self.kind == "quniform" else 2
        if len(self.args) != number:
            raise ValueError(f"{self.kind} takes {_SHAPES[self.kind]}, got {list(self.args)}")
        try:
            if any(isinstance(a, bool) for a in self.args):
                raise TypeError
            bounds = tuple(float(a) for a in self.args)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.kind} takes numbers, got {list(self.args)}") from None
        if not all(math.isfinite(b) for b in bounds):
            raise ValueError(f"{self.kind} takes finite numbers, got {list(self.args)}")
        if bounds[0] >= bounds[1]:
            raise ValueError(f"{self.kind}: low must be below high, got low={bounds[0]:g}, high={bounds[1]:g}")
        if self.kind == "loguniform" and bounds[0] <= 0:
            raise ValueError(f"loguniform: low must be above 0, got {bounds[0]:g}; use uniform for a range with 0 in it")
        if self.kind == "quniform" and not 0 < bounds[2] <= bounds[1] - bounds[0]:
            raise ValueError(f"quniform: step must be above 0 and at most high - low, got {bounds[2]:g}")
        if self.kind == "randint":
            if any(b != int(b) for b in bounds):
                raise ValueError(f"randint takes whole numbers, got {list(self.args)}")
            return tuple(int(b) for b in bounds)
        return bounds

    @property
    def is_log(self) -> bool:
        """Whether equal ratios, not equal differences, are equally likely."""
        return self.kind == "loguniform"

    def values(self) -> list[Any] | None:
        """All values in order, or None where there are too many to list."""
        if self.kind in ("choice", "grid"):
            return list(self.args)
        if self.kind == "randint":
            low, high = self.args
            return list(range(low, high)) if high - low <= _MAX_ENUMERATED else None
        if self.kind == "quniform":
            low, high, step = self.args
            count = math.floor((high - low) / step + 1e-9) + 1
            return [self.rounded(low + i * step) for i in range(count)] if count <= _MAX_ENUMERATED else None
        return None

    def corners(self) -> list[Any]:
        """The outermost values: all of a list, both ends of a range."""
        if self.kind in ("choice", "grid"):
            return list(self.args)
        if self.kind == "randint":
            return [self.args[0], self.args[1] - 1]
        return [self.args[0], self.args[1]]

    def probes(self) -> list[Any]:
        """Values to try a setting's rules on: the corners, and inside a range one that is no whole number."""
        if self.kind in ("uniform", "loguniform"):
            low, high = self.args
            return [low, high, low + (high - low) * 0.381966]
        return [*self.corners(), self.args[0] + self.args[2]] if self.kind == "quniform" else self.corners()

    def sample(self, rng: np.random.Generator) -> Any:
        """One random value."""
        return self.at(rng.random())

    def at(self, share: float) -> Any:
        """The value below which `share` (0 <= share < 1) of the random values lie.

        Floats keep 6 digits of the range, so that tables and trial keys show them whole.
        """
        listed = self.values()
        if listed is not None:
            return listed[int(share * len(listed))]
        low, high = self.args[0], self.args[1]
        if self.kind == "randint":
            return low + int(share * (high - low))
        if self.kind == "loguniform":
            return self.rounded(math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
        if self.kind == "quniform":
            steps = math.floor((high - low) / self.args[2] + 1e-9)
            return self.rounded(low + int(share * (steps + 1)) * self.args[2])
        return self.rounded(low + share * (high - low))

    def rounded(self, value: Any) -> Any:
        """`value` as raysweep would have sampled it (a searcher may return more digits)."""
        if self.kind not in ("uniform", "loguniform", "quniform"):
            return value
        digits = 12 if self.kind == "quniform" else self._sample_digits()
        return min(max(significant(float(value), digits), self.args[0]), self.args[1])

    def _sample_digits(self) -> int:
        """6 digits of the range: a narrow one far from 0 needs more of the value."""
        low, high = self.args[0], self.args[1]
        return _SAMPLE_DIGITS + max(0, math.ceil(math.log10(max(abs(low), abs(high)) / (high - low))))

    def as_dict(self) -> dict[str, Any]:
        """The form in which a sweep file writes it."""
        return {self.kind: list(self.args), **({"when": self.when} if self.when else {})}

    def describe(self) -> str:
        """A short text for people: `0.0001 .. 0.1 (log)`, `1, 2, 3`."""
        listed = self.values()
        if listed is not None and len(listed) <= 12:
            return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in listed)
        step = f", step {self.args[2]:g}" if self.kind == "quniform" else ""
        return f"{self.args[0]:g} .. {self.corners()[-1]:g}{step}{' (log)' if self.is_log else ''}"


def parse(value: Any) -> Domain:
    """A domain from the form in which a sweep file writes it: a mapping with one key, the domain's name, and maybe `when`.

    Raises:
        ValueError: the rule that the value breaks, with the names or the form that would be right.
    """
    if isinstance(value, Domain):
        return value
    forms = "; ".join(f"{name}: {shape}" for name, shape in _SHAPES.items())
    if isinstance(value, list):
        raise ValueError(f"say how to walk through the list: {{grid: {value}}} or {{choice: {value}}}")
    if not isinstance(value, dict) or len(named := {name: args for name, args in value.items() if name != "when"}) != 1:
        near = difflib.get_close_matches("when", value, n=1) if isinstance(value, dict) and "when" not in value else []
        hint = f"; {near[0]}: nearest: when" if near else ""
        raise ValueError(f"a domain is a mapping with one key (and `when`, its condition), got {value!r}{hint}; forms: {forms}")
    when = value.get("when", "model.depth > 3")
    if not isinstance(when, str) or not when.strip():
        raise ValueError(f"when takes a condition in quotes, such as 'model.depth > 3', got {when!r}")
    ((kind, args),) = named.items()
    if kind not in _SHAPES:
        near = difflib.get_close_matches(str(kind), _SHAPES, n=1)
        hint = f"; nearest: {near[0]}" if near else ""
        raise ValueError(f"unknown domain {kind!r}{hint}; forms: {forms}")
    if not isinstance(args, list | tuple):
        raise ValueError(f"{kind} takes {_SHAPES[kind]}, got {args!r}")
    return Domain(str(kind), tuple(args), when.strip() if "when" in value else "")


DomainField = Annotated[
    Domain,
    BeforeValidator(parse),
    PlainSerializer(lambda domain: domain.as_dict(), return_type=dict),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **{name: {"type": "array", "description": shape} for name, shape in _SHAPES.items()},
                "when": {"type": "string", "description": "Vary the setting only where this holds, such as model.depth > 3."},
            },
            "oneOf": [{"required": [name]} for name in _SHAPES],
        }
    ),
]

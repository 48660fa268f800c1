"""The conditions of a sweep's domains (`when`) and its constraints: which settings a combination has, and whether it may run.

The expressions themselves are expressions.py.
"""

from __future__ import annotations

import difflib
import graphlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from raysweep.errors import ConfigError
from raysweep.experiment import Experiment
from raysweep.expressions import Expression, shown
from raysweep.space import Domain
from raysweep.yamlfile import unknown_key, valid_names

_MAX_TRIED = 1000
_RANGE_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


class Rules:
    """A sweep's conditions and constraints, checked, ready to be asked.

    An expression sees a setting as the trial would have it: the combination's value; where the combination has none, the
    experiment's own, with the defaults that follow from others (`model.preset`).

    Attributes:
        order: the keys of the space, each after those that its condition names; without conditions the file's order.

    Args:
        experiment: the sweep's own.
        space: dotted keys and domains.
        constraints: expressions that every trial fulfils.

    Raises:
        ConfigError: every expression that cannot work, one line each.
    """

    def __init__(self, experiment: Experiment, space: Mapping[str, Domain], constraints: Sequence[str]) -> None:
        self._experiment, self._space = experiment, space
        self._read: dict[tuple[str, str], Any] = {}
        mistakes: list[str] = []
        self._when = {
            key: expression
            for key, domain in space.items()
            if domain.when and (expression := _expression(domain.when, f"space.{key}.when", mistakes))
        }
        self._constraints = [
            expression for i, text in enumerate(constraints) if (expression := _expression(text, f"constraints.{i}", mistakes))
        ]
        self._needs = {key: self._swept(self._when[key]) if key in self._when else set() for key in space}
        mistakes += [f"space.{key}.when: names {key} itself" for key, needs in self._needs.items() if key in needs]
        if mistakes:
            raise ConfigError("\n  ".join(mistakes))
        self.order = self._ordered()
        mistakes = self._mistakes_in_conditions() or self._mistakes_in_constraints()
        if mistakes:
            raise ConfigError("\n  ".join(mistakes))

    def _swept(self, expression: Expression) -> set[str]:
        """The settings of the space that an expression follows from: those it names, and those that others' defaults follow."""
        found = {name for name in expression.names if name in self._space}
        for name in expression.names:
            section, _, last = name.partition(".")
            own = getattr(self._experiment, section)
            if name in self._space or last in own.model_fields_set:
                continue
            for other in self._space:
                if other.startswith(f"{section}."):
                    given = [{other.partition(".")[2]: value} for value in _tries(self._space[other])]
                    before = {other.partition(".")[2]: self._experiment.get(other)}
                    if any(last in type(own).dependent_defaults(values) for values in [before, *given]):
                        found.add(other)
        return found

    def _ordered(self) -> tuple[str, ...]:
        sorter = graphlib.TopologicalSorter(self._needs)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise ConfigError(f"space: conditions wait for each other in a circle: {' -> '.join(error.args[1])}") from None
        order: list[str] = []
        while sorter.is_active():
            ready = set(sorter.get_ready())
            order += [key for key in self._space if key in ready]
            sorter.done(*ready)
        return tuple(order)

    # --- What they say ------------------------------------------------------------------------------------------------

    @property
    def are_any(self) -> bool:
        """Whether there is a condition or a constraint at all."""
        return bool(self._when or self._constraints)

    def is_active(self, key: str, decided: Mapping[str, Any]) -> bool:
        """Whether a setting's condition is met; `decided` are the settings before it in `order`.

        Raises:
            ConfigError: the condition cannot be evaluated.
        """
        condition = self._when.get(key)
        if condition is None:
            return True
        try:
            return bool(condition.value(self._seen(condition, decided)))
        except ValueError as error:
            raise ConfigError(f"space.{key}.when: {error}") from None

    def choose(self, pick: Callable[[str], Any]) -> dict[str, Any]:
        """A combination: `pick` is asked for each setting whose condition is met, in `order`; the result has the file's order.

        Raises:
            ConfigError: a condition cannot be evaluated.
        """
        decided: dict[str, Any] = {}
        for key in self.order:
            if self.is_active(key, decided):
                decided[key] = pick(key)
        return {key: decided[key] for key in self._space if key in decided}

    def active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of a value for every setting those whose condition is met; as `choose`."""
        return self.choose(values.__getitem__) if self._when else dict(values)

    def holds(self, overrides: Mapping[str, Any]) -> bool:
        """Whether a trial has just the settings that it has in this space, and fulfils the constraints."""
        try:
            return set(self.choose(overrides.__getitem__)) == set(overrides) and not self.broken(overrides)
        except (KeyError, ConfigError):
            return False

    def broken(self, overrides: Mapping[str, Any]) -> str:
        """Which constraint a combination does not fulfil, and the values; "" where it fulfils all."""
        for constraint in self._constraints:
            seen = self._seen(constraint, overrides)
            try:
                if not constraint.value(seen):
                    return f"the constraint {constraint.text} is not met: {shown(seen)}"
            except ValueError as error:
                return f"the constraint {error}"
        return ""

    def mistakes_in_point(self, point: Mapping[str, Any]) -> list[str]:
        """Why a point cannot be tried: as `misfits`, or a broken constraint."""
        return self.misfits(point) or list(filter(None, [self.broken(point)]))

    def misfits(self, point: Mapping[str, Any]) -> list[str]:
        """Settings that a point lacks, has without need, or that the space does not know."""
        decided: dict[str, Any] = {}
        missing: list[str] = []
        for key in self.order:
            if self.is_active(key, decided):
                if key in point:
                    decided[key] = point[key]
                else:
                    missing.append(key)
        mistakes = [f"{key} is missing" for key in self._space if key in missing]
        mistakes += [f"{key} is not in the space" for key in sorted(point) if key not in self._space]
        inactive = [] if missing else [key for key in point if key in self._space and key not in decided]
        mistakes += [f"{key} has no place: its condition ({self._when[key].text}) is not met; leave it out" for key in inactive]
        return mistakes

    def examples(self, *keys: str) -> Iterator[dict[str, Any]]:
        """Different combinations of some settings and of all that their conditions follow from; at most 1000.

        Every listed value, of a range its ends and some between.
        """
        names, seen = self._with_needs(keys), set[str]()
        for values in itertools.islice(itertools.product(*(_tries(self._space[name]) for name in names)), _MAX_TRIED):
            decided: dict[str, Any] = {}
            for name, value in zip(names, values, strict=True):
                if self.is_active(name, decided):
                    decided[name] = value
            if (text := repr(decided)) not in seen:
                seen.add(text)
                yield decided

    def _with_needs(self, keys: Iterable[str]) -> list[str]:
        wanted = set(keys)
        for key in reversed(self.order):
            if key in wanted:
                wanted |= self._needs[key]
        return [key for key in self.order if key in wanted]

    # --- What a setting is --------------------------------------------------------------------------------------------

    def _seen(self, expression: Expression, overrides: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(name, overrides) for name in expression.names}

    def _value(self, key: str, overrides: Mapping[str, Any]) -> Any:
        if key in overrides:
            return self.read(key, overrides[key])
        section, _, name = key.partition(".")
        own = getattr(self._experiment, section)
        if "." in name:
            return self._experiment.get(key)
        # What follows from a setting of the combination: with_overrides, but for one value, and many times as fast.
        given = {name: getattr(own, name) for name in own.model_fields_set}
        given |= {other.partition(".")[2]: value for other, value in overrides.items() if other.startswith(f"{section}.")}
        if given.get(name) is None:
            following = type(own).dependent_defaults(given).get(name)
            given[name] = following if following is not None else type(own).model_fields[name].get_default()
        return _plain(given[name])

    def read(self, key: str, value: Any) -> Any:
        """A value as the experiment understands it: the text "1e-3" is a number where one is wanted."""
        if not isinstance(value, str):
            return _plain(value)
        if (key, value) not in self._read:
            try:
                self._read[key, value] = _plain(self._experiment.with_overrides({key: value}).get(key))
            except ConfigError:
                self._read[key, value] = value  # it goes with another setting only
        return self._read[key, value]

    # --- What is wrong with them --------------------------------------------------------------------------------------

    def _mistakes_in_conditions(self) -> list[str]:
        for key in self.order:
            if key in self._when and (mistake := self._mistake_in(self._when[key])):
                return [f"space.{key}.when: {mistake}"]  # those that follow from it cannot be tried
        return []

    def _mistakes_in_constraints(self) -> list[str]:
        found = [(place, self._mistake_in(constraint)) for place, constraint in enumerate(self._constraints)]
        return [f"constraints.{place}: {mistake}" for place, mistake in found if mistake]

    def _mistake_in(self, expression: Expression) -> str:
        """What is wrong with an expression for the values of the space; "" for nothing."""
        swept, is_met = self._swept(expression), False
        for decided in self.examples(*swept):
            seen = self._seen(expression, decided)
            try:
                value = expression.value(seen)
            except ValueError as error:
                return str(error)
            if not isinstance(value, bool):
                return f"{expression.text} must be true or false, such as a comparison; for {shown(seen)} it is {value!r}"
            is_met = is_met or value
        # Of ranges and of very many values only some were tried.
        listed = [self._space[name].values() for name in self._with_needs(swept)]
        is_all = all(values is not None for values in listed) and math.prod(len(v or ()) for v in listed) <= _MAX_TRIED
        return "" if is_met or not is_all else f"{expression.text} is met by no combination of the space"


def _expression(text: str, where: str, mistakes: list[str]) -> Expression | None:
    """A text's expression; None, and a line more, where it is none or names what is no setting."""
    try:
        expression = Expression(text)
    except ValueError as error:
        mistakes.append(f"{where}: {error}")
        return None
    unknown = [
        f"{where}: {line}{'' if '.' in name else ', texts stand in quotes'}"
        for name in expression.names
        if (line := unknown_setting(name))
    ]
    mistakes += unknown
    return None if unknown else expression


def unknown_setting(name: str) -> str:
    """One line that refuses the dotted key of no setting, with the nearest one; "" where it is one."""
    *parents, last = name.split(".")
    names = valid_names(Experiment, parents) if parents else []
    if last in names or parents[:2] == ["model", "params"]:
        return ""
    if names:
        return unknown_key(name, names)
    keys = [f"{section}.{key}" for section in Experiment.model_fields for key in valid_names(Experiment, [section])]
    near = [key for key in keys if key.rpartition(".")[2] == last] or difflib.get_close_matches(name, keys, n=1)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"{name}: no such setting{hint}; settings have dotted keys (model.depth)"


def _tries(domain: Domain) -> list[Any]:
    listed = domain.values()
    if listed is not None and len(listed) <= _MAX_TRIED:
        return listed
    return [*domain.corners(), *(domain.at(share) for share in _RANGE_SHARES)]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""What a searcher of one's own must keep to. What a searcher is stands in tune/protocols.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from raysweep.conditions import Rules
from raysweep.experiment import Experiment
from raysweep.space import Domain, parse
from raysweep.testing.checks import check
from raysweep.tune.own import suggested
from raysweep.tune.protocols import KnownTrial, OwnSearcher

_ENOUGH = 12
_SPACE: dict[str, dict[str, list[Any]]] = {
    "optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.dropout": {"uniform": [0.0, 0.8]}, "model.depth": {"choice": [1, 2, 3]},
}  # fmt: skip
_SMALL: dict[str, dict[str, list[Any]]] = {"model.depth": {"choice": [1, 2]}, "model.base_channels": {"grid": [4, 8]}}


def loss(overrides: Mapping[str, Any]) -> float:
    """A training that takes no time: a valley in the numbers of a point."""
    numbers = [float(value) for value in overrides.values() if isinstance(value, int | float)]
    return sum((math.log10(abs(number) + 1e-6) + 1) ** 2 for number in numbers)


class SearcherContract:
    """Subclass it in a test module as `class TestMySearcher(SearcherContract)`, with `make`; pytest runs what it inherits."""

    space: Mapping[str, Mapping[str, list[Any]]] = _SPACE
    """The space that most tests search, as a sweep file writes it."""
    small_space: Mapping[str, Mapping[str, list[Any]]] | None = _SMALL
    """A space with a few points, which is used up; None for a searcher that takes no lists."""

    def make(self, space: Mapping[str, Domain], mode: Literal["min", "max"], seed: int) -> OwnSearcher:
        """The searcher, as its factory makes it."""
        raise NotImplementedError

    def _made(self, seed: int = 0, mode: Literal["min", "max"] = "min", is_small: bool = False) -> _Search:
        chosen = self.small_space if is_small and self.small_space else self.space
        space = {key: parse(dict(domain)) for key, domain in chosen.items()}
        return _Search(lambda: self.make(space, mode, seed), space)

    def test_each_point_lies_in_the_space_and_is_new(self) -> None:
        for mode in ("min", "max"):
            search = self._made(mode=mode)
            search.run(loss)
            texts = [json.dumps(trial.overrides) for trial in search.known]
            check(len(set(texts)) == len(texts), f"no point comes twice, mode {mode}: {texts}")
            check(len(texts) == _ENOUGH or search.has_ended, f"{_ENOUGH} points of an endless space, got {len(texts)}")

    def test_the_same_seed_gives_the_same_points(self) -> None:
        for seed in (0, 7):
            first, second = self._made(seed), self._made(seed)
            first.run(loss)
            second.run(loss)
            check(first.known == second.known, f"two searches with seed {seed} that see the same suggest the same")

    def test_a_restart_at_any_moment_goes_on(self) -> None:
        for place in range(0, _ENOUGH, 3):
            points = []
            for _ in range(2):
                search = self._made()
                search.run(loss, until=place)
                search.restart()
                search.run(loss)
                points.append(search.known)
                texts = [json.dumps(trial.overrides) for trial in search.known]
                check(len(set(texts)) == len(texts), f"after a restart with {place} trials no known point comes again: {texts}")
                check(len(texts) == _ENOUGH or search.has_ended, f"after a restart with {place} trials it goes on")
            check(points[0] == points[1], f"two searchers that are shown the same {place} trials suggest the same")

    def test_trials_without_a_value_end_nothing(self) -> None:
        search = self._made()
        outcomes = iter([None, None, 1.0, None, 1e30, -5.0, None, 0.0, 1e-300, None, 2.0, 3.0])
        search.run(lambda _overrides: next(outcomes))
        check(len(search.known) == _ENOUGH or search.has_ended, "trials that fail or diverge (value None) are lived with")

    def test_trials_that_run_are_not_suggested_again(self) -> None:
        search = self._made()
        for _ in range(4):
            point = search.ask()
            if point is None:
                break
            search.known.append(KnownTrial(point, None, "running"))
        texts = [json.dumps(trial.overrides) for trial in search.known]
        check(len(texts) > 0, "a searcher that knows nothing suggests a point: it has nothing to wait for")
        check(len(set(texts)) == len(texts), f"several trials at a time are several points: {texts}")

    def test_a_space_that_is_used_up_ends_the_search(self) -> None:
        if self.small_space is None:
            return
        search = self._made(is_small=True)
        number = math.prod(len(domain.values() or []) for domain in search.space.values())
        for _ in range(100):
            point = search.ask()
            if point is not None and point not in [trial.overrides for trial in search.known]:
                search.known.append(KnownTrial(point, loss(point), "ended"))
        check(search.has_ended, f"with its {number} points used up, suggest() raises StopIteration; it gave {len(search.known)}")

    def test_what_is_shown_is_left_as_it_is(self) -> None:
        search = self._made()
        search.run(loss, until=5)
        before = repr(search.known)
        search.ask()
        check(repr(search.known) == before, "suggest() changes nothing of what it is shown")


class _Search:
    """A searcher and the trials that it is shown."""

    def __init__(self, make: Callable[[], OwnSearcher], space: Mapping[str, Domain]) -> None:
        self._make, self.space = make, space
        self.own = make()
        self.known: list[KnownTrial] = []
        self.has_ended = False

    def restart(self) -> None:
        self.own = self._make()

    def ask(self) -> dict[str, Any] | None:
        try:
            return suggested(self.own, "the searcher", self.space, Rules(Experiment(), self.space, ()), self.known)
        except StopIteration:
            self.has_ended = True
            return None

    def run(self, worth: Callable[[Mapping[str, Any]], float | None], until: int = _ENOUGH) -> None:
        """Trials one at a time, each ended before the next is asked for."""
        while len(self.known) < until:
            point = self.ask()
            if self.has_ended:
                return
            check(point is not None, "suggest() returns None only while trials run: here it would wait for ever")
            self.known.append(KnownTrial(point or {}, worth(point or {}), "ended"))

"""What a scheduler of one's own must keep to. What a scheduler is stands in tune/protocols.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

from raysweep.testing.checks import check
from raysweep.tune.own import decided
from raysweep.tune.protocols import OwnScheduler

Row = tuple[str, int, float | None]
_EPOCHS = 9


def rows(seed: int, trials: int = 10, lost: float = 0.0) -> list[Row]:
    """Rows of trials that train three at a time, each to its last epoch, or to a value that is not finite: so many are."""
    draw = random.Random(seed)
    levels = {f"{number:012x}": draw.random() for number in range(trials)}
    waiting = {key: iter(range(1, _EPOCHS + 1)) for key in levels}
    told: list[Row] = []
    while waiting:
        key = draw.choice(list(waiting)[:3])
        epoch = next(waiting[key], None)
        if epoch is None:
            del waiting[key]
        else:
            value = None if draw.random() < lost else levels[key] + draw.random() / epoch
            told.append((key, epoch, value))
            if value is None:
                del waiting[key]
    return told


class SchedulerContract:
    """Subclass it in a test module as `class TestMyRule(SchedulerContract)`, with `make`; pytest runs what it inherits."""

    stops_something: bool = True
    """Whether the rule stops any of ten trials whose losses differ by far."""

    def make(self, mode: Literal["min", "max"], epochs: int) -> OwnScheduler:
        """The scheduler, as its factory makes it."""
        raise NotImplementedError

    def _decide(self, own: OwnScheduler, told: list[Row], stopped: set[str] | None = None) -> list[dict[str, Any] | None]:
        """The answers to rows; a trial that is stopped tells no more."""
        ended: set[str] = set() if stopped is None else stopped
        answers: list[dict[str, Any] | None] = []
        for key, epoch, value in told:
            answer = None if key in ended else decided(own, "the scheduler", key, epoch, value)
            if answer is not None:
                ended.add(key)
            answers.append(answer)
        return answers

    def test_the_same_rows_give_the_same_decisions(self) -> None:
        for seed in range(5):
            told = rows(seed)
            first, second = (self._decide(self.make("min", _EPOCHS), told) for _ in range(2))
            check(first == second, "decisions follow from the rows, not from chance or the clock")

    def test_a_restart_at_any_moment_changes_no_decision(self) -> None:
        for seed in range(3):
            told = rows(seed, lost=0.1)
            whole = self._decide(self.make("min", _EPOCHS), told)
            for place in range(0, len(told), 7):
                own, stopped = self.make("min", _EPOCHS), set[str]()
                before = self._decide(own, told[:place], stopped)
                check(before == whole[:place], "rows that are told again after a restart give the decisions that they gave")
                check(self._decide(own, told[place:], stopped) == whole[place:], "and so do those that follow")

    def test_decisions_do_not_depend_on_the_names_of_trials(self) -> None:
        told = rows(1)
        names = {key: f"{number * 7919:012x}" for number, key in enumerate(sorted({key for key, _, _ in told}, reverse=True))}
        first = self._decide(self.make("min", _EPOCHS), told)
        second = self._decide(self.make("min", _EPOCHS), [(names[key], epoch, value) for key, epoch, value in told])
        check(first == second, "a key only tells trials apart")

    def test_two_schedulers_share_nothing(self) -> None:
        told = rows(2)
        alone = self._decide(self.make("min", _EPOCHS), told)
        first, second = self.make("min", _EPOCHS), self.make("min", _EPOCHS)
        stopped: tuple[set[str], set[str]] = (set(), set())
        together = []
        for row in told:
            together += self._decide(first, [row], stopped[0])
            self._decide(second, [row], stopped[1])
        check(together == alone, "what one instance is told is nothing to another one")

    def test_more_is_better_where_it_is_meant(self) -> None:
        told = rows(3)
        least = self._decide(self.make("min", _EPOCHS), told)
        mirrored: list[Row] = [(key, epoch, None if value is None else -value) for key, epoch, value in told]
        most = self._decide(self.make("max", _EPOCHS), mirrored)
        check([a is None for a in least] == [a is None for a in most], "mode max stops what mode min stops of the negated values")

    def test_values_that_are_not_finite_harm_nobody(self) -> None:
        for seed in range(5):
            self._decide(self.make("min", _EPOCHS), rows(seed, lost=0.4))
        own = self.make("min", _EPOCHS)
        for epoch in range(1, _EPOCHS + 1):
            for number in range(8):
                decided(own, "the scheduler", f"lost{number}-{epoch}", epoch, None)
            good = decided(own, "the scheduler", "good", epoch, 0.5)
            check(good is None, f"the only trial with finite values is not stopped, at epoch {epoch} it was: {good}")

    def test_the_best_trial_by_far_is_never_stopped(self) -> None:
        told: list[Row] = [(key, epoch, (value or 0.0) + 10.0) for key, epoch, value in rows(4)]
        best: Callable[[int], Row] = lambda epoch: ("best", epoch, 1.0 / epoch)  # noqa: E731
        mixed = [row for number in range(_EPOCHS) for row in [best(number + 1), *told[number * 10 : number * 10 + 10]]]
        answers = self._decide(self.make("min", _EPOCHS), mixed)
        check(all(a is None for row, a in zip(mixed, answers, strict=True) if row[0] == "best"), "the best trial goes on")

    def test_something_is_stopped(self) -> None:
        answers = [answer for seed in range(5) for answer in self._decide(self.make("min", _EPOCHS), rows(seed))]
        is_any = any(answer is not None for answer in answers)
        check(is_any == self.stops_something, "a rule that stops nothing saves nothing (or stops_something is False)")

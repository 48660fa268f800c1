"""What a searcher and a scheduler of one's own look like: plain Python, without Ray. docs/own-search.md shows one of each.

`search.algorithm: "package.module:factory"` and `scheduler.name: "package.module:factory"` name functions that return them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raysweep.space import Domain


@dataclass(frozen=True)
class KnownTrial:
    """One trial of the sweep, as a searcher is shown it.

    Attributes:
        overrides: dotted keys of the space, and the trial's values.
        value: its best finite objective so far; None where it has none.
        status: waiting, running, ended, or infeasible: it cannot be trained.
    """

    overrides: Mapping[str, Any]
    value: float | None
    status: str


class OwnSearcher(Protocol):
    """Thinks of trials. After a restart a new one is shown the same trials, so what it suggests should follow from them."""

    def suggest(self, known: Sequence[KnownTrial]) -> Mapping[str, Any] | None:
        """The next point: a value for each key of the space whose `when` is met. None: wait until another trial has ended.

        A point that is known already is asked for again, a few times; the sweep then ends without more.

        Args:
            known: all trials so far, by number.

        Raises:
            StopIteration: there is no other point.
        """
        ...


class OwnSearcherFactory(Protocol):
    """What `search.algorithm` names; `search.params` are its further arguments."""

    def __call__(self, space: Mapping[str, Domain], mode: Literal["min", "max"], seed: int, **params: Any) -> OwnSearcher: ...


class OwnScheduler(Protocol):
    """Decides which trials are stopped early. It is shown every row once, in the journal's order, after a restart again."""

    def decide(self, key: str, epoch: int, value: float | None) -> str | Mapping[str, Any] | None:
        """Whether a trial is to be stopped after an epoch, and why. None: it goes on.

        In the trial's last epoch, and where the value is not finite, the trial ends by itself, and the answer does not count.

        Args:
            key: of the trial.
            epoch: that it has finished, from 1.
            value: of the objective in this epoch; None where it is not finite.

        Returns:
            The reason in words, or as fields such as rung and cutoff, which the journal and the report show.
        """
        ...


class OwnSchedulerFactory(Protocol):
    """What `scheduler.name` names; `scheduler.params` are its further arguments."""

    def __call__(self, mode: Literal["min", "max"], epochs: int, **params: Any) -> OwnScheduler: ...

"""A contest of a sweep's best configurations, played by its trials; the rule is contenders.py. No Ray in here.

Which trials come next follows from what the trials came to, and from nothing else: a contest that is begun again after a
restart goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysweep.tune.contenders import Standing, comparable, race
from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.seeds import Configurations

CONTENDERS = "contenders"
"""The rule that a contest's decisions name."""

Outcome = Callable[[PlannedTrial], tuple[str, float | None, dict[str, Any]] | None]
"""Status, best finite objective and reason of a trial that has ended; None where it has not."""


class Contest:
    """The contest of one sweep.

    Attributes:
        contenders: the first trials of the configurations that take part, best first; empty before the contest has begun.
        standing: how it stands; None before it has begun.

    Args:
        plan: of the sweep; the rounds' trials are added to it.
        outcome: what became of a trial.
    """

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self.contenders: list[PlannedTrial] = []
        self.standing: Standing | None = None
        self._plan, self._outcome = plan, outcome
        self._configurations = Configurations(plan)

    def advance(self) -> list[PlannedTrial]:
        """The trials that are to be trained next; none where the contest is over. The first seeds must all have ended."""
        if not self.contenders:
            self.contenders = self._best()
        plan, num_rounds = self._plan, self._plan.sweep.search.seeds - 1
        by_number = {first.number: first for first in self.contenders}
        while True:
            self.standing = race({n: self._values(first, num_rounds) for n, first in by_number.items()}, num_rounds)
            following = self.standing.rounds + 1
            wanted = [self._configurations.further(by_number[number], following) for number in self.standing.open]
            if not wanted:
                plan.num_planned, plan.has_contest = len(plan.trials), False
                return []
            to_train = [trial for trial in wanted if trial is not None and self._outcome(trial) is None]
            # Nobody can be dropped for a value after the first round, so that the second one is certain.
            plan.num_planned = len(plan.trials) + (len(wanted) if following == 1 else 0)
            if to_train:
                return to_train

    def _best(self) -> list[PlannedTrial]:
        """The configurations with the best values of their first seeds, as many as may take part; by number where equal."""
        sign = 1 if self._plan.sweep.objective.mode == "min" else -1
        values = {}
        for place, first in enumerate(self._configurations.trials):
            ended = None if first.infeasible else self._outcome(first)
            if ended is not None and ended[0] in ("completed", "stopped") and ended[1] is not None:
                values[place] = (sign * ended[1], first.number)
        ranked = sorted(values, key=lambda place: values[place])[: self._plan.sweep.search.contenders]
        return [self._configurations.trials[place] for place in ranked]

    def _values(self, first: PlannedTrial, num_rounds: int) -> list[float | None]:
        """What a contender's further seeds came to, as far as they have ended one after the other."""
        values = list[float | None]()
        for number in range(1, num_rounds + 1):
            trial = self._configurations.further(first, number, add=False)
            ended = None if trial is None else self._outcome(trial)
            if ended is None:
                break
            status, value, reason = ended
            is_whole = status == "completed" or (status == "stopped" and reason.get("rule") == "patience")
            metric = self._plan.sweep.objective.metric
            values.append(comparable(metric, value) if is_whole and value is not None else None)
        return values

    def decisions(self) -> list[dict[str, Any]]:
        """The contest so far, as decisions of the journal: who takes part, and who was dropped after which round and why."""
        if self.standing is None or len(self.contenders) < 2:
            return []
        numbers = [first.number for first in self.contenders]
        seeds = self._plan.sweep.search.seeds
        begin = {"trial": numbers[0], "action": "contend", "rule": CONTENDERS, "contenders": numbers, "seeds": seeds}
        drop = {"action": "drop", "rule": CONTENDERS}
        drops = [
            {"trial": d.contender, **drop, "round": d.round, "leader": d.leader, "p": d.p, "level": d.level}
            for d in self.standing.drops
        ]
        return [begin, *drops]

    def untold(self, told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The decisions that a journal does not have yet; all of them where it tells another contest.

        Args:
            told: the decisions in the journal, in order.
        """
        mine = self.decisions()
        contests = [{k: v for k, v in d.items() if k not in ("time", "event")} for d in told if d.get("rule") == CONTENDERS]
        begins = [place for place, decision in enumerate(contests) if decision["action"] == "contend"]
        last = contests[begins[-1] :] if begins else []
        return mine[len(last) :] if last == mine[: len(last)] else mine


def go_on(plan: Plan, outcome: Outcome) -> Contest | None:
    """Play a sweep's contest as far as it is known and plan its next round; None where it has none, or it cannot begin yet."""
    if not plan.has_contest or len(plan.trials) < plan.num_configurations:
        return None
    if any(outcome(trial) is None for trial in plan.trials if not trial.infeasible):
        return None
    contest = Contest(plan, outcome)
    contest.advance()
    return contest

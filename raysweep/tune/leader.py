"""Which configuration is the best so far while a sweep with several seeds runs: what its report would say."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from raysweep.store.configurations import counted_in, rank, read_contest
from raysweep.tune.recorder import NEVER_BEST, SweepRecorder, TrialState
from raysweep.tune.seeds import configuration, is_further


@dataclass(frozen=True)
class Leader:
    """The best configuration.

    Attributes:
        trials: its trials that have a value, by number.
        values: that are in its mean.
    """

    trials: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


class Leading:
    """Finds the best configuration among the states of a recorder; it looks at all of them, as often as it is asked.

    Args:
        recorder: of the sweep.
    """

    def __init__(self, recorder: SweepRecorder) -> None:
        self._recorder, self._num_seen = recorder, 0
        self._members: dict[str, list[TrialState]] = {}

    def find(self) -> Leader | None:
        """The best one now, ranked as in the report; None where no trial has a value."""
        plan, states = self._recorder.plan, self._recorder.states
        for state in itertools.islice(states.values(), self._num_seen, None):
            # The first trial of a configuration stands first, wherever its further ones were planned.
            of = self._members.setdefault(configuration(state.trial.overrides), [])
            of.insert(len(of) if is_further(plan.sweep, state.trial.overrides) else 0, state)
        self._num_seen = len(states)
        contest, found = read_contest(self._recorder.contest), None
        for members in self._members.values():
            good = {s.trial.number: s.best for s in members if s.best is not None and s.status not in NEVER_BEST}
            bad = sum(s.status in NEVER_BEST for s in members)
            if good:
                place = rank(members[0].trial.number, good, bad, contest, plan.sweep.objective.mode)
                if found is None or place < found[0]:
                    counted = counted_in(members[0].trial.number, good, contest)
                    found = place, Leader(tuple(sorted(good)), tuple(counted.values()))
        return found and found[1]

"""Configurations: the trials that differ only in their seed, together; and the contest of the best ones."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from raysweep.sweep_settings import SEED


@dataclass(frozen=True)
class Contest:
    """What the journal tells of a contest; trials are the first ones of the configurations.

    Attributes:
        contenders: who took part, best first by the values of their first seeds.
        drops: who was dropped: the fields of the decisions (trial, round, leader, p, level), in order.
        seeds: that each could have, the first one among them.
    """

    contenders: tuple[int, ...] = ()
    drops: tuple[dict[str, Any], ...] = ()
    seeds: int = 0

    @property
    def left(self) -> tuple[int, ...]:
        """Those that were not dropped."""
        dropped = {drop["trial"] for drop in self.drops}
        return tuple(number for number in self.contenders if number not in dropped)


def read_contest(decisions: Sequence[dict[str, Any]]) -> Contest:
    """The newest contest of a journal's decisions; one without contenders where there was none."""
    found, drops = Contest(), list[dict[str, Any]]()
    for decision in decisions:
        if decision["action"] == "contend":
            found, drops = Contest(tuple(decision["contenders"]), (), decision["seeds"]), []
        elif decision["action"] == "drop":
            drops.append(decision)
    return Contest(found.contenders, tuple(drops), found.seeds)


@dataclass(frozen=True)
class Groups:
    """Which trials belong together.

    Attributes:
        first: for each trial the first one of its configuration.
        seeds: for each trial its seed.
    """

    first: dict[int, int] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)


def group(overrides: Mapping[int, Mapping[str, Any]], swept: Collection[str], seed: int) -> Groups:
    """Trials by configuration; each its own one where no further seed was trained.

    Args:
        overrides: of the trials, by number.
        swept: the settings of the space; a swept seed is a setting like any other.
        seed: of the experiment.
    """
    if SEED in swept or not any(SEED in given for given in overrides.values()):
        return Groups({number: number for number in overrides})
    by_settings: dict[str, list[int]] = {}
    # The first trial does not set its seed.
    for number in sorted(overrides, key=lambda n: (SEED in overrides[n], n)):
        settings = {key: value for key, value in overrides[number].items() if key != SEED}
        by_settings.setdefault(json.dumps(settings, sort_keys=True, default=repr), []).append(number)
    first = {number: numbers[0] for numbers in by_settings.values() for number in numbers}
    return Groups(first, {number: int(given.get(SEED, seed)) for number, given in overrides.items()})


def configurations(
    trials: pd.DataFrame, groups: Groups, contest: Contest, params: Collection[str], metric: str, mode: str
) -> pd.DataFrame:
    """One row per configuration, best first.

    Ranked by the contest first: who is left, then who was dropped last, then who took no part. Then by the share of seeds
    that neither diverged nor failed, of those that have ended; then by the mean. What the first seed of a contender came to
    chose it, so it is left out of its mean as soon as there is another one.

    Args:
        trials, metric, mode: as in Results.
        groups: which of them belong together.
        contest: of the best ones.
        params: names of the settings' columns.

    Returns:
        trial (the configuration's first), the settings, seeds (whose values are in the mean), bad (diverged or failed), mean,
        std (n - 1; NA for one seed), best, best_trial, contest ("", "left", "dropped after round n"), trials (a list).
    """
    by_number = trials.set_index("trial")
    members: dict[int, list[int]] = {}
    for number in sorted(groups.first):
        members.setdefault(groups.first[number], []).append(number)
    sign = 1.0 if mode == "min" else -1.0
    rounds = {drop["trial"]: drop["round"] for drop in contest.drops}
    records, ranks = [], []
    for first, numbers in members.items():
        own = by_number.loc[numbers]
        bad = own["status"].isin(("diverged", "failed"))
        good = own[~bad & own[metric].notna()]
        further = good[good.index != first]
        counted = further if first in contest.contenders and len(further) else good
        values = counted[metric].astype("float64")
        place = "" if first not in contest.contenders else f"dropped after round {rounds[first]}" if first in rounds else "left"
        tier = 0 if place == "left" else 1 / (1 + rounds[first]) if place else 2
        mean = float(values.mean())
        share = len(good) / max(1, len(good) + int(bad.sum()))
        best: Any = (good[metric] * sign).idxmin() if len(good) else pd.NA
        ranks.append((not len(good), tier, -share, sign * mean if len(good) else 0.0, first))
        records.append(
            {
                "trial": first,
                **{name: by_number.loc[first, name] for name in params},
                "seeds": len(values),
                "bad": int(bad.sum()),
                "mean": mean,
                "std": float(values.std(ddof=1)),
                "best": float(good.loc[best, metric]) if len(good) else math.nan,
                "best_trial": best,
                "contest": place,
                "trials": numbers,
            }
        )
    order = sorted(range(len(records)), key=lambda i: ranks[i])
    columns = ["trial", *params, "seeds", "bad", "mean", "std", "best", "best_trial", "contest", "trials"]
    frame = pd.DataFrame.from_records([records[i] for i in order], columns=columns)
    kinds: dict[str, Any] = dict.fromkeys(("trial", "seeds", "bad", "best_trial"), "Int64")
    settings = {name: trials[name].dtype for name in params}
    return frame.astype({**settings, **kinds, **dict.fromkeys(("mean", "std", "best"), "float64"), "contest": "string"})

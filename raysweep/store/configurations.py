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
    def dropped(self) -> dict[int, int]:
        """Those that were dropped, and after which round."""
        return {drop["trial"]: drop["round"] for drop in self.drops}

    @property
    def left(self) -> tuple[int, ...]:
        """Those that were not dropped."""
        dropped = self.dropped
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

    Trials of equal settings and seed are different trainings (the model's source or TRAINING_VERSION changed, or the horizon of
    a cosine schedule): the newest of each belong together, and so do those before them.

    Args:
        overrides: of the trials, by number.
        swept: the settings of the space; a swept seed is a setting like any other.
        seed: of the experiment.
    """
    if SEED in swept or not any(SEED in given for given in overrides.values()):
        return Groups({number: number for number in overrides})
    by_settings: dict[tuple[int, str], list[int]] = {}
    settings, newer = dict[int, str](), dict[int, int]()
    seen: dict[tuple[str, Any], int] = {}
    for number in sorted(overrides, reverse=True):
        given = overrides[number]
        settings[number] = json.dumps({k: v for k, v in given.items() if k != SEED}, sort_keys=True, default=repr)
        training = settings[number], given.get(SEED, seed)
        newer[number] = seen.get(training, 0)
        seen[training] = newer[number] + 1
    # The first trial does not set its seed.
    for number in sorted(overrides, key=lambda n: (SEED in overrides[n], n)):
        by_settings.setdefault((newer[number], settings[number]), []).append(number)
    first = {number: numbers[0] for numbers in by_settings.values() for number in numbers}
    return Groups(first, {number: int(given.get(SEED, seed)) for number, given in overrides.items()})


def counted_in(first: int, good: Mapping[int, float], contest: Contest) -> dict[int, float]:
    """The trials that are in a configuration's mean, with their values.

    What the first seed of a contender came to chose it, so it is left out as soon as there is another one.

    Args:
        first: the configuration's first trial.
        good: the objective of each of its trials that has one and neither diverged nor failed.
        contest: of the best ones.
    """
    further = {number: value for number, value in good.items() if number != first}
    return further if first in contest.contenders and further else dict(good)


def rank(first: int, good: Mapping[int, float], num_bad: int, contest: Contest, mode: str) -> tuple[float, ...]:
    """What configurations are ranked by, the lowest first; running trials and ended ones alike.

    By the contest first: who is left, then who was dropped last, then who took no part. Then by the share of seeds that
    neither diverged nor failed, of those that have a value or ended so; then by the mean.

    Args:
        first, good, contest: as counted_in().
        num_bad: trials that diverged or failed.
        mode: of the objective.
    """
    values, dropped = counted_in(first, good, contest).values(), contest.dropped.get(first)
    tier = 2.0 if first not in contest.contenders else 0.0 if dropped is None else 1 / (1 + dropped)
    mean = math.fsum(values) / max(1, len(values))
    return not good, tier, -len(good) / max(1, len(good) + num_bad), mean if mode == "min" else -mean, first


def configurations(
    trials: pd.DataFrame, groups: Groups, contest: Contest, params: Collection[str], metric: str, mode: str
) -> pd.DataFrame:
    """One row per configuration, best first.

    What is in a mean is counted_in()'s, the ranking rank()'s.

    Args:
        trials, metric, mode: as in Results.
        groups: which of them belong together.
        contest: of the best ones.
        params: names of the settings' columns.

    Returns:
        trial (the configuration's first), the settings, seeds (whose values are in the mean), bad (diverged or failed), mean,
        mean_val_loss (of the same seeds, whatever the metric), std (n - 1; NA for one seed), best, best_trial, contest
        ("", "left", "dropped after round n"), trials (a list).
    """
    by_number = trials.set_index("trial")
    members: dict[int, list[int]] = {}
    for number in sorted(groups.first):
        members.setdefault(groups.first[number], []).append(number)
    sign = 1.0 if mode == "min" else -1.0
    dropped = contest.dropped
    records, ranks = [], []
    for first, numbers in members.items():
        own = by_number.loc[numbers]
        bad = own["status"].isin(("diverged", "failed"))
        good = own.loc[~bad & own[metric].notna(), metric].astype("float64")
        by_trial = dict(zip(good.index.tolist(), good.tolist(), strict=True))
        counted = counted_in(first, by_trial, contest)
        values = pd.Series(counted, dtype="float64")
        place = "" if first not in contest.contenders else f"dropped after round {dropped[first]}" if first in dropped else "left"
        best: Any = (good * sign).idxmin() if len(good) else pd.NA
        ranks.append(rank(first, by_trial, int(bad.sum()), contest, mode))
        records.append(
            {
                "trial": first,
                **{name: by_number.loc[first, name] for name in params},
                "seeds": len(values),
                "bad": int(bad.sum()),
                "mean": float(values.mean()),
                "mean_val_loss": float(own.loc[list(counted), "val_loss"].astype("float64").mean()),
                "std": float(values.std(ddof=1)),
                "best": float(good.loc[best]) if len(good) else math.nan,
                "best_trial": best,
                "contest": place,
                "trials": numbers,
            }
        )
    order = sorted(range(len(records)), key=lambda i: ranks[i])
    columns = ["trial", *params, "seeds", "bad", "mean", "mean_val_loss", "std", "best", "best_trial", "contest", "trials"]
    frame = pd.DataFrame.from_records([records[i] for i in order], columns=columns)
    kinds: dict[str, Any] = dict.fromkeys(("trial", "seeds", "bad", "best_trial"), "Int64")
    settings = {name: trials[name].dtype for name in params}
    return frame.astype(
        {**settings, **kinds, **dict.fromkeys(("mean", "mean_val_loss", "std", "best"), "float64"), "contest": "string"}
    )

"""What population-based training (scheduler pbt) asks of a sweep; how it runs is tune/population.py."""

from __future__ import annotations

import math
from collections.abc import Mapping

from raysweep.experiment import Experiment
from raysweep.space import Domain
from raysweep.sweep_settings import LISTED, SchedulerConfig, SearchConfig

MIN_MEMBERS = 4


def population_mistakes(
    experiment: Experiment, space: Mapping[str, Domain], search: SearchConfig, scheduler: SchedulerConfig
) -> list[str]:
    """Why a sweep cannot be a population's, one rule a line; empty where it can."""
    mistakes = []
    if search.algorithm not in LISTED:
        mistakes.append(
            f"search.algorithm {search.algorithm} waits for trials that have ended, and a population's members end together: "
            "use grid, random or sobol with scheduler pbt"
        )
    if scheduler.interval >= experiment.train.epochs:
        mistakes.append(
            f"scheduler.interval {scheduler.interval} of {experiment.train.epochs} epochs: no member could ever copy another; "
            "lower it"
        )
    listed = [domain.values() for domain in space.values()]
    distinct = math.prod(len(values) if values is not None else math.inf for values in listed) + len(search.start_with)
    wanted = distinct if search.algorithm == "grid" else min(distinct, search.num_samples or math.inf)
    if wanted < MIN_MEMBERS:
        mistakes.append(
            f"scheduler pbt needs a population of at least {MIN_MEMBERS} trials, got {wanted:g}; widen space, or raise "
            "search.num_samples"
        )
    mistakes += [
        f"space.{key}: the members of a population copy each other's weights, so they must see the same images and the same split"
        for key in space
        if key.startswith("data.")
    ]
    if experiment.train.patience is not None or "train.patience" in space:
        mistakes.append(
            "train.patience ends trials one by one, and scheduler pbt compares all of a generation; leave one of them out"
        )
    return mistakes

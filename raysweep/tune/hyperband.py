"""Asynchronous Hyperband: several brackets of asynchronous successive halving, which differ in when they first stop a trial."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler

_BLOCK = 8  # trials over which the draws of brackets are stratified
_GOLDEN = (5**0.5 - 1) / 2


def num_brackets(grace_period: int, reduction_factor: float, epochs: int) -> int:
    """How many brackets Hyperband has: one for each rung below the last epoch, and one that stops nothing."""
    rungs = 0
    while grace_period * reduction_factor**rungs < epochs:
        rungs += 1
    return rungs + 1


def shares(brackets: int, reduction_factor: float) -> list[float]:
    """Each bracket's share of the trials, the one that stops soonest first.

    A bracket with s rungs gets trials in proportion to reduction_factor**s / (s + 1), so that all brackets train for about
    the same number of epochs (Li et al., Hyperband, JMLR 2018, algorithm 1).
    """
    weights = [reduction_factor**rungs / (rungs + 1) for rungs in reversed(range(brackets))]
    return [weight / sum(weights) for weight in weights]


def bracket_of(number: int, seed: int, of_each: list[float]) -> int:
    """A trial's bracket: a function of its number and search.seed, so that it is the same after a restart.

    Of every 8 consecutive trials one falls into each eighth of the shares, in an order that is drawn anew for each 8, and
    at a place in it that follows the golden ratio: even for few trials, and without a period in which a grid's settings
    could fall together with the brackets.

    Args:
        number: of the trial, from 0.
        seed: search.seed.
        of_each: the brackets' shares.
    """
    block, place = divmod(number, _BLOCK)
    eighth = np.random.default_rng([seed, block]).permutation(_BLOCK)[place]
    share = (eighth + block * _GOLDEN % 1) / _BLOCK
    return min(int(np.searchsorted(np.cumsum(of_each), share, side="right")), len(of_each) - 1)


class Hyperband(AsyncHyperBandScheduler):  # type: ignore[misc]
    """Ray Tune's asynchronous successive halving in Hyperband's brackets (Li et al., ASHA, MLSys 2020, section 3.3).

    Not Ray's HyperBandScheduler, which is synchronous: it pauses each trial at a rung until the slowest of its bracket is
    there, so machines wait, and a paused trial starts again. Ray's asynchronous one draws a trial's bracket from numpy's
    global generator, which a restart of the sweep does not repeat; here the bracket follows from the trial.

    Args:
        seed: search.seed.
        options: of AsyncHyperBandScheduler, without `brackets`.
    """

    def __init__(self, seed: int, **options: Any) -> None:
        factor = options["reduction_factor"]
        number = num_brackets(options["grace_period"], factor, options["max_t"])
        super().__init__(**options, brackets=number)
        self._seed, self._shares = seed, shares(number, factor)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._trial_info[trial.trial_id] = self._brackets[bracket_of(trial.number, self._seed, self._shares)]

    def bracket(self, trial_id: str) -> int:
        """The number of a trial's bracket, from 0, the one that stops soonest."""
        return int(self._brackets.index(self._trial_info[trial_id]))

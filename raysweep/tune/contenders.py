"""The contest of a sweep's best configurations: who gets another seed and who is dropped. Pure functions of numbers; no Ray.

The rule is a race with blocking (Moore and Lee, Efficient algorithms for minimizing cross validation error, ICML 1994;
Birattari et al., A racing algorithm for configuring metaheuristics, GECCO 2002), with t-tests at a bounded error:

- In each round every contender that is left is trained with one more seed, the same one for all, so that what a seed does
  to all of them (the order of the samples, the noise) cancels in the differences.
- The values that made them contenders are not looked at: the best of many noisy values is too good (the winner's curse).
- From the second round on, each one is compared with the leader, the lowest mean: a one-sided t-test of the n paired
  differences, n - 1 degrees of freedom, which needs no equal variances.
- The truly best of k contenders is dropped in round n only if one of k - 1 possible leaders looks better than it by chance.
  So with the level alpha_n / (k - 1) for each comparison and the alpha_n adding up to 0.05, it is dropped in at most 5 % of
  all sweeps, whoever leads and whenever it ends (Bonferroni). alpha_n grows as n - 1: with two differences a test finds
  next to nothing, so little is spent on it.
- Losses are compared as logarithms: what a seed changes is a share of the loss, so the differences have one spread for good
  and bad contenders, and a ratio means the same on any data. psnr is a logarithm already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALPHA = 0.05
"""The chance that a whole contest drops the truly best contender."""

_SMALLEST = 1e-300


def comparable(metric: str, value: float) -> float:
    """An objective as contests compare it: lower is better, differences are of one kind everywhere."""
    return -value if metric == "psnr" else math.log(max(value, _SMALLEST))


def level(round_: int, num_rounds: int, num_contenders: int) -> float:
    """The level of one comparison in a round: the p below which a contender is dropped.

    Args:
        round_: counted from 1; in the first there is nothing to compare.
        num_rounds: that there are at most.
        num_contenders: that the contest began with.
    """
    spent = (round_ - 1) / (num_rounds * (num_rounds - 1) / 2)
    return ALPHA * spent / (num_contenders - 1)


def p_worse(values: Sequence[float], leader: Sequence[float]) -> float:
    """The p of the one-sided paired t-test: how likely such a lead is when the leader is not truly better.

    Args:
        values, leader: at least two values each, of the same seeds, lower is better.
    """
    from scipy.special import stdtr

    differences = [value - best for value, best in zip(values, leader, strict=True)]
    num, mean = len(differences), math.fsum(differences) / len(differences)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (num - 1)
    if variance == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(num - 1, -mean / math.sqrt(variance / num)))


@dataclass(frozen=True)
class Drop:
    """A contender that gets no further seed.

    Attributes:
        contender: which one.
        round: after which round.
        leader: whom it was compared with; None where it was dropped for a seed that diverged or failed.
        p, level: of the test and what it had to be below; None as above.
    """

    contender: int
    round: int
    leader: int | None = None
    p: float | None = None
    level: float | None = None


@dataclass(frozen=True)
class Standing:
    """How a contest stands.

    Attributes:
        left: the contenders that are not dropped, best first where there are values.
        drops: in order.
        rounds: that are complete.
        open: those of `left` that have no value for the next round; empty when the contest is over.
    """

    left: tuple[int, ...]
    drops: tuple[Drop, ...]
    rounds: int
    open: tuple[int, ...]


def race(values: Mapping[int, Sequence[float | None]], num_rounds: int) -> Standing:
    """Play a contest as far as its values go.

    Args:
        values: by contender, in the order that breaks ties: its values seed after seed, lower is better, None for a seed
            that diverged or failed; as many as there are.
        num_rounds: further seeds that a contender gets at most, at least 2.
    """
    left, drops = list(values), list[Drop]()
    for number in range(1, num_rounds + 1):
        if len(left) < 2:
            return Standing(tuple(left), tuple(drops), number - 1, ())
        waiting = tuple(c for c in left if len(values[c]) < number)
        if waiting:
            return Standing(_ranked(left, values, number - 1), tuple(drops), number - 1, waiting)
        sound = [c for c in left if values[c][number - 1] is not None]
        drops += [Drop(c, number) for c in left if c not in sound]
        left = sound
        if number >= 2 and left:
            leader, below = _ranked(left, values, number)[0], level(number, num_rounds, len(values))
            first = _known(values[leader], number)
            tested = [Drop(c, number, leader, p_worse(_known(values[c], number), first), below) for c in left if c != leader]
            dropped = [drop for drop in tested if (drop.p or 0.0) < below]
            drops += dropped
            left = [c for c in left if c not in {drop.contender for drop in dropped}]
    return Standing(_ranked(left, values, num_rounds), tuple(drops), num_rounds, ())


def _known(values: Sequence[float | None], num: int) -> list[float]:
    return [value for value in values[:num] if value is not None]


def _ranked(left: Sequence[int], values: Mapping[int, Sequence[float | None]], num: int) -> tuple[int, ...]:
    """Those that are left by their means over `num` seeds; ties as they were given."""
    return tuple(sorted(left, key=lambda c: math.fsum(_known(values[c], num))))

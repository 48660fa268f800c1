"""Trials that run on although the scheduler stops them, so that the report can say how often stopping is wrong.

No Ray in here. What came out of an audit is worked out in store/audits.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def is_drawn(key: str, seed: int, share: float) -> bool:
    """Whether a trial belongs to the audited share of those that are stopped: a function of its key, so after a restart, too.

    Args:
        key: of the trial.
        seed: search.seed.
        share: scheduler.audit.
    """
    drawn = int.from_bytes(hashlib.sha256(f"audit {seed} {key}".encode()).digest()[:8], "big")
    return (drawn >> 11) / 2**53 < share


class Audit:
    """Which trials are audited, and since which epoch. What they do later is hidden from the rule that stopped them.

    Args:
        seed: search.seed.
        share: scheduler.audit.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share
        self._epochs: dict[str, int] = {}

    def knows(self, audited: Mapping[str, int]) -> None:
        """Go on with the audits of earlier starts, whatever the share is now; `audited`: epochs by the trials' keys."""
        self._epochs.update(audited)

    def hides(self, key: str, epoch: int) -> bool:
        """Whether the rule must not see a trial's row: for it the trial ended before."""
        return epoch > self._epochs.get(key, epoch)

    def takes(self, key: str, epoch: int, may_begin: bool = True) -> bool:
        """Whether a trial that is stopped at an epoch runs on; from then on its rows are hidden."""
        if key not in self._epochs and not (may_begin and is_drawn(key, self._seed, self._share)):
            return False
        # Earlier than it was told, where the rule is another one now.
        self._epochs[key] = min(epoch, self._epochs.get(key, epoch))
        return True

    def __contains__(self, key: str) -> bool:
        return key in self._epochs

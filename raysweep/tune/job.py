"""What the engine runs: a plan, its directory, and what was there before."""

from __future__ import annotations

from dataclasses import dataclass

from raysweep.store.directory import SweepDirectory
from raysweep.store.remote import Place
from raysweep.tune.plan import Plan
from raysweep.tune.resume import Past, Work


@dataclass(frozen=True)
class Job:
    """What runs, where, and what was there before."""

    plan: Plan
    directory: SweepDirectory
    past: Past | None
    todo: Work
    place: Place

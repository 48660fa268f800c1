"""What was found of a sweep that is gone on with, and what will run, in words."""

from __future__ import annotations

from raysweep.tune.plan import Plan, PlannedTrial
from raysweep.tune.resume import Past, Work
from raysweep.tune.seeds import is_further


def describe(plan: Plan, past: Past, found: Work, retry_failed: bool) -> str:
    """What was found and what will run, for people."""
    known = [past.trials[t.key] for t in plan.trials if t.key in past.trials]
    counts: dict[str, int] = {}
    for trial in known:
        status = trial.status or "unfinished"
        counts[status] = counts.get(status, 0) + 1
    listed = ", ".join(f"{number} {status}" for status, number in counts.items()) or "no trial of this plan"
    new = [t for t in found.to_run if t.key not in past.trials]
    again = len(found.to_run) - len(new)
    parts = [*([f"{again} go on"] if again else []), *([f"{len(new)} are new{_why_anew(plan, past, new)}"] if new else [])]
    parts += [f"{count} {what}" for what, count in to_come(plan).items() if count]
    text = f"found {past.directory.path.name}/: {listed}; " + (", ".join(parts) or "nothing is left to train")
    failed = counts.get("failed", 0)
    return text + (" (the failed ones again with --retry-failed)" if failed and not retry_failed else "")


def to_come(plan: Plan) -> dict[str, int]:
    """How many trials a plan does not list yet, as far as is known, by what they are."""
    unknown = max(0, plan.num_planned - len(plan.trials))
    firsts = sum(not is_further(plan.sweep, trial.overrides) for trial in plan.trials)
    thought = min(unknown, max(0, plan.num_configurations - firsts)) if plan.has_contest else unknown
    return {"that the search will think of": thought, "further seeds of the best": unknown - thought}


def _why_anew(plan: Plan, past: Past, new: list[PlannedTrial]) -> str:
    """Why trials are new whose settings the journal has; "" where there is none such."""
    known = {repr(sorted(trial.overrides.items())) for trial in past.trials.values() if trial.status != "infeasible"}
    number = sum(repr(sorted(trial.overrides.items())) in known for trial in new)
    if not number:
        return ""
    factory, epochs = plan.sweep.experiment.model.factory, plan.sweep.experiment.train.epochs
    if "pbt" in (past.sweep.scheduler.name, plan.sweep.scheduler.name):
        why = "a member of a population (scheduler pbt) is another trial"
    elif past.sweep.experiment.train.epochs != epochs:
        why = "with optim.schedule cosine another number of train.epochs is another training; see optim.schedule_epochs"
    elif factory:
        why = f"the code of {factory} has changed"
    else:
        why = "this release of raysweep trains them differently (TRAINING_VERSION)"
    return f" ({number} with settings that were trained before: {why})"

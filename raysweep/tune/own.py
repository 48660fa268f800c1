"""A searcher or a scheduler of the user's own: found, tried, and called so that its errors are its own. No Ray in here."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raysweep.conditions import Rules
from raysweep.config import Sweep
from raysweep.errors import ConfigError, RaysweepError, TrialError
from raysweep.plugins import load_factory, raised
from raysweep.space import Domain
from raysweep.store.journal import plain
from raysweep.tune.protocols import KnownTrial, OwnScheduler, OwnSearcher


class OwnCodeError(TrialError):
    """The user's searcher or scheduler raised an error, or answered what cannot be."""


def is_own(name: str) -> bool:
    """Whether a searcher or a scheduler is named by its factory."""
    return ":" in name


def check_own(sweep: Sweep) -> None:
    """Make what the sweep names by a factory once, before anything starts.

    Raises:
        ConfigError: it cannot be imported, does not take its params, or lacks its method.
    """
    if is_own(sweep.search.algorithm):
        make_searcher(sweep)
    if is_own(sweep.scheduler.name):
        make_scheduler(sweep)


def make_searcher(sweep: Sweep) -> OwnSearcher:
    """The searcher that search.algorithm names; raises as check_own()."""
    given = {"space": dict(sweep.space), "mode": sweep.objective.mode, "seed": sweep.search.seed}
    return _made("search.algorithm", sweep.search.algorithm, given, sweep.search.params, "suggest")  # type: ignore[no-any-return]


def make_scheduler(sweep: Sweep) -> OwnScheduler:
    """The scheduler that scheduler.name names; raises as check_own()."""
    given = {"mode": sweep.objective.mode, "epochs": sweep.experiment.train.epochs}
    return _made("scheduler.name", sweep.scheduler.name, given, sweep.scheduler.params, "decide")  # type: ignore[no-any-return]


def _made(setting: str, name: str, given: dict[str, Any], params: dict[str, Any], method: str) -> Any:
    factory = load_factory(name, setting)
    clash = sorted(given.keys() & params.keys())
    if clash:
        section = setting.partition(".")[0]
        raise ConfigError(f"{section}.params.{clash[0]}: raysweep itself gives {name} its {clash[0]}; leave it out")
    try:
        made = factory(**given, **params)
    except Exception as error:  # whatever the user's code raises is the answer
        called = ", ".join([*given, *(f"{key}={value!r}" for key, value in params.items())])
        raise ConfigError(f"{setting} {name}: called with {called} it raised {raised(error)}") from error
    if not callable(getattr(made, method, None)):
        raise ConfigError(f"{setting} {name} must return an object with a method {method}(), it returned a {type(made).__name__}")
    return made


def fault(*parts: object) -> RaysweepError | None:
    """The error that one of a sweep's parts has met, in the user's code or on the disk; Ray Tune would take it for a trial's."""
    return next((found for part in parts if (found := getattr(part, "fault", None)) is not None), None)


def raise_fault(*parts: object) -> None:
    """Raise what fault() finds."""
    found = fault(*parts)
    if found is not None:
        raise found


def suggested(
    own: OwnSearcher, name: str, space: Mapping[str, Domain], rules: Rules, known: Sequence[KnownTrial]
) -> dict[str, Any] | None:
    """What a searcher answers, checked.

    Raises:
        StopIteration: it has no other point.
        OwnCodeError: it raised, or its point does not lie in the space.
    """
    try:
        point = own.suggest(known)
    except StopIteration:
        raise
    except Exception as error:  # whatever the user's code raises is the answer
        raise _failed("search.algorithm", name, error) from error
    if point is None:
        return None
    where = f"search.algorithm {name}: suggest() returned {point!r}"
    if not isinstance(point, Mapping):
        raise OwnCodeError(f"{where}; it must return a mapping with a value for each key of the space, or None to wait")
    values = {str(key): plain(value) for key, value in point.items()}
    if misfits := rules.misfits(values):
        raise OwnCodeError(f"{where}; {', '.join(misfits)}")
    values = {key: values[key] for key in space if key in values}
    outside = [key for key, value in values.items() if not is_in(space[key], value, partial(rules.read, key))]
    if outside:
        lines = "; ".join(f"{key}: {values[key]!r} is not in {space[key].describe()}" for key in outside)
        raise OwnCodeError(f"{where}; {lines}")
    return {key: value if space[key].kind in ("choice", "grid") else space[key].rounded(value) for key, value in values.items()}


def decided(own: OwnScheduler, name: str, key: str, epoch: int, value: float | None) -> dict[str, Any] | None:
    """What a scheduler answers, as the fields of a reason; None: the trial goes on.

    Raises:
        OwnCodeError: it raised, or answered what is no reason.
    """
    try:
        answer = own.decide(key, epoch, value)
    except Exception as error:  # whatever the user's code raises is the answer
        raise _failed("scheduler.name", name, error) from error
    if answer is None:
        return None
    if isinstance(answer, str):
        return {"text": answer}
    if isinstance(answer, Mapping):
        try:
            return dict(json.loads(json.dumps(plain(answer))))
        except (TypeError, ValueError):
            pass
    raise OwnCodeError(
        f"scheduler.name {name}: decide() returned {answer!r}; it must return None to go on, or the reason as a text or as a "
        "mapping of names to plain values"
    )


def is_in(domain: Domain, value: Any, read: Callable[[Any], Any]) -> bool:
    """Whether a domain holds a value; `read` as in place_of."""
    if domain.kind in ("choice", "grid"):
        return place_of(domain, value, read) is not None
    value = read(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    low, high = domain.args[:2]
    if domain.kind == "randint":
        return value == int(value) and low <= value < high
    if domain.kind == "quniform":
        steps = (value - low) / domain.args[2]
        return bool(low - 1e-9 <= value <= high + 1e-9 and abs(steps - round(steps)) < 1e-6)
    return bool(low <= value <= high)


def place_of(domain: Domain, value: Any, read: Callable[[Any], Any]) -> int | None:
    """Where a list has a value; None: nowhere.

    Args:
        read: how the experiment understands a value of the setting (Rules.read): the text "1e-3" is 0.001.
    """
    wanted = read(value)
    others = enumerate(map(read, domain.args))
    return next((n for n, other in others if wanted == other and isinstance(wanted, bool) == isinstance(other, bool)), None)


def _failed(setting: str, name: str, error: Exception) -> OwnCodeError:
    text = "".join(traceback.format_exception(error))
    return OwnCodeError(
        f"{setting} {name} raised {raised(error)}; the sweep has ended, what was trained is kept. Repair it, and the same "
        "command goes on",
        text,
    )

"""What all suites use. Their texts do not depend on pytest's rewriting of assert, which leaves other packages alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check(is_kept: bool, rule: str) -> None:
    """Fail a test with the rule that was broken."""
    if not is_kept:
        raise AssertionError(rule)


def check_raises(kind: type[BaseException], action: Callable[[], Any], rule: str) -> None:
    """Fail a test unless `action` raises an error of this kind."""
    try:
        result = action()
    except kind:
        return
    raise AssertionError(f"{rule}; it returned {result!r}")

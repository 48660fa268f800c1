"""What a sweep was predicted to take: a file beside its directory, from `--plan` to the next start, and what it took then."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import StoreError
from raysweep.store.directory import check_storage, write_atomically


def prediction_file(storage: Path, name: str) -> Path:
    """`storage/NAME.plan.json`."""
    return storage / f"{name}.plan.json"


def fingerprint(what: Mapping[str, Any]) -> str:
    """16 hex digits of the settings and the trials that a prediction is for."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_prediction(storage: Path, name: str, what_for: str, prediction: Mapping[str, Any]) -> None:
    """Leave a prediction for the next start of the sweep; the file is written whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    check_storage(storage)
    content = json.dumps({"for": what_for, "predicted": dict(prediction)}, indent=2).encode() + b"\n"
    try:
        storage.mkdir(parents=True, exist_ok=True)
        write_atomically(prediction_file(storage, name), content)
    except OSError as error:
        path = prediction_file(storage, name)
        raise StoreError(f"cannot write {path}: {error.strerror or error}; set `storage` (--storage) elsewhere") from None


def read_prediction(storage: Path, name: str, what_for: str) -> dict[str, Any] | None:
    """The prediction for just these settings and trials; None where there is none. A damaged file counts as none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(prediction_file(storage, name).read_text(encoding="utf-8"))
        if content["for"] == what_for:
            return dict(content["predicted"])
    return None


@dataclass
class WallTime:
    """How long a sweep took against what was predicted, from the events of its journal in order.

    Attributes:
        predicted: the newest prediction, as the `start` event has it; None where there is none, or where a later start has
            added to what it was for.
        seconds: from its start on, over all starts that followed, each to its last event.
    """

    predicted: dict[str, Any] | None = None
    seconds: float = 0.0
    _last: float | None = None
    _of: dict[str, Any] | None = None  # the settings that it is for
    _is_over: bool = False

    def see(self, name: str, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        time = event.get("time")
        if name == "start":
            settings = {k: v for k, v in (event.get("sweep") or {}).items() if k not in ("storage", "working_directory")}
            if event.get("predicted"):
                self.predicted, self.seconds, self._of = event["predicted"], 0.0, settings
            elif settings != self._of or self._is_over:
                self.predicted = None
            self._last, self._is_over = time, False
        elif time is not None and self._last is not None and time > self._last:
            self.seconds += time - self._last
            self._last = time
        if name == "finish":
            self._is_over = event.get("status") == "completed"

"""Why trials ended, for people."""

from __future__ import annotations

from typing import Any


def describe_end(end: dict[str, Any]) -> str:
    """Why a trial ended, for people, from the fields of its `end` event."""
    reason: dict[str, Any] = end.get("reason") or {}
    status, rule = end["status"], reason.get("rule")
    if status == "stopped" and rule == "patience":
        return f"no lower {reason.get('metric')} in {reason.get('patience')} epochs"
    if status == "stopped" and reason.get("cutoff") is not None:
        rung = f"rung {reason['rung']}" if reason.get("rung") is not None else f"epoch {reason.get('epoch')}"
        rung += f" of bracket {reason['bracket']}" if "bracket" in reason else ""
        value, cutoff = _shown(reason.get("value")), _shown(reason["cutoff"])
        return f"{rule}: at {rung} {reason.get('metric')} {value} was past the cutoff {cutoff}"
    if status == "stopped":
        return f"{rule}: at epoch {reason.get('epoch')}" + (f", {reason['text']}" if reason.get("text") else "")
    if status == "diverged":
        return f"{reason.get('what', 'loss')} was not finite at step {reason.get('step')}, lr {_shown(reason.get('lr'))}"
    return str(reason.get("text", ""))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else "not finite" if value is None else str(value)

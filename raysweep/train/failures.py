"""What a failure was, and whether the run goes on after it: functions of values, without Ray and torch.

Who starts the next attempt is the driver; a loss that is not finite is an outcome, not a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["out_of_memory", "lost_worker", "preemption", "error", "storage", "disk"]

_DISK_TYPES = {"DiskError", "OutOfDiskError"}
# Of errors that come as a text alone, such as Ray's and torch's; others are known by their numbers (store/disk.py).
_DISK_TEXTS = ("No space left on device", "Disk quota exceeded", "Read-only file system")
_STORAGE_TYPES = {"CheckpointError", "StoreError", "PermissionError"}
_STORAGE_TEXTS = ("[Errno 13] Permission denied",)
_MEMORY_TYPES = {"OutOfMemoryError", "MemoryError", "_ArrayMemoryError"}
# Ray says of any process or node that died that memory may have been the cause: "OOM" or "out of memory" alone tell nothing.
_MEMORY_TEXTS = (
    "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory", "MPS backend out of memory",
    "can't allocate memory", "node running low on memory", "killed due to memory pressure",
)  # fmt: skip
_PREEMPTION_TYPES = {"PreemptionError"}
_PREEMPTION_TEXTS = ("died by preemption", "node preemption", "AUTOSCALER_DRAIN_PREEMPTED")
_LOST_TYPES = {
    "ActorDiedError", "ActorUnavailableError", "LocalRayletDiedError", "NodeDiedError", "OwnerDiedError", "RayActorError",
    "WorkerCrashedError", "WorkerGroupError", "WorkerGroupStartupFailedError", "WorkerGroupStartupTimeoutError",
    "WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError",
    # Ray's controller could not start the workers, or lost them on the way: an error of theirs comes as their own.
    "ControllerError",
    "DistBackendError", "DistNetworkError", "DistStoreError",
}  # fmt: skip
_PEER_TEXTS = ("Connection closed by peer", "Connection reset", "Broken pipe", "NCCL", "gloo")
_ROOM_TEXTS = ("worker group startup timed out",)
_GROUP_TEXTS = ("Default process group has not been initialized", "Invalid process group specified")


@dataclass(frozen=True)
class Failure:
    """What ended one attempt of a run.

    Attributes:
        kind: from classify().
        message: `ExceptionType: text`, or Ray's text.
        traceback: of the worker that failed first; empty where a process was lost.
        step: the global step that the attempt had reached.
        start_step: the global step that it began at, that of its checkpoint.
        micro_batch: samples that a worker held at once; None: its whole share.
        node: the machine, where it is known.
    """

    kind: Kind
    message: str
    traceback: str = ""
    step: int = 0
    start_step: int = 0
    micro_batch: int | None = None
    node: str | None = None

    @property
    def signature(self) -> tuple[str, str]:
        """The exception's type and the text's last line, which tell one error from another."""
        lines = self.message.strip().splitlines() or [""]
        return lines[0].partition(":")[0], lines[-1]


@dataclass(frozen=True)
class Limits:
    """What decide() goes by.

    Attributes:
        max_failures: lost workers in a row without a newer checkpoint; the next one ends the run.
        max_preemptions: preemptions of the whole run; None: any number.
        share: samples that a worker holds at once without micro batches.
        exactness: `ddp` or `bitwise`, which fixes the micro batch.
    """

    max_failures: int
    max_preemptions: int | None
    share: int
    exactness: Literal["ddp", "bitwise"] = "ddp"


@dataclass(frozen=True)
class Decision:
    """`retry` with this micro batch (None: as it was set), or `fail`; the reason is for people and for the journal."""

    action: Literal["retry", "fail"]
    micro_batch: int | None
    reason: str


def classify(exception_type_name: str, message: str, *, draining: bool) -> Kind:
    """The kind of a failure.

    Args:
        exception_type_name: `type(error).__name__`, of the worker's error or of Ray's.
        message: all of its text; of a WorkerGroupError with the texts of its workers.
        draining: whether the lost worker's node had been told to go, or Ray calls its actor preempted.
    """
    if exception_type_name in _DISK_TYPES or _has(message, _DISK_TEXTS):
        return "disk"
    if exception_type_name in _STORAGE_TYPES or _has(message, _STORAGE_TEXTS):
        return "storage"
    if exception_type_name in _MEMORY_TYPES or _has(message, _MEMORY_TEXTS):
        return "out_of_memory"
    if exception_type_name in _PREEMPTION_TYPES or (_is_lost(exception_type_name, message) and _has(message, _PREEMPTION_TEXTS)):
        return "preemption"
    if _is_lost(exception_type_name, message):
        return "preemption" if draining else "lost_worker"
    return "error"


def is_lack_of_room(message: str) -> bool:
    """Whether Ray's workers did not start because what was free has gone: nothing was lost, another number may fit."""
    return _has(message, _ROOM_TEXTS)


def _has(message: str, texts: Sequence[str]) -> bool:
    return any(text in message for text in texts)


def _is_lost(exception_type_name: str, message: str) -> bool:
    if exception_type_name in _LOST_TYPES:
        return True
    # gloo tells of a lost peer in a RuntimeError; when Ray ends a group, the group is taken from under its other workers.
    texts = {"RuntimeError": (*_PEER_TEXTS, *_GROUP_TEXTS), "ValueError": _GROUP_TEXTS}.get(exception_type_name, ())
    return _has(message, texts)


def decide(history: Sequence[Failure], limits: Limits) -> Decision:
    """Whether a run goes on after its newest failure.

    Progress is what a failed attempt left behind: the next one began at a later step than any before it. Every rule that
    tries again without a limit of its own needs progress or halves something, so that a failure which comes back at the
    same step ends the run.

    - out_of_memory: the micro batch is halved, the global batch stays; at one sample the run fails. Counts nowhere.
      In bitwise mode the shard is the micro batch, so that the run fails at once.
    - error: retried once, if its attempt had done a step; not if the same error came at the same step before, nor if any
      error came before it without progress in between.
    - lost_worker: retried up to max_failures times without progress; with progress the count starts anew.
    - preemption: retried up to max_preemptions times in the whole run.
    - storage: fails.

    A failure of kind disk is the machine's, not the run's: it never comes here.

    Args:
        history: the run's failures in order, the newest one last; at least one.
        limits: of the run.
    """
    last = history[-1]
    rules: dict[Kind, Callable[[Sequence[Failure], Limits], Decision]] = {
        "out_of_memory": _out_of_memory,
        "error": _error,
        "lost_worker": _lost_worker,
        "preemption": _preemption,
        "storage": _storage,
    }
    return rules[last.kind](history, limits)


def _out_of_memory(history: Sequence[Failure], limits: Limits) -> Decision:
    last = history[-1]
    held = min(last.micro_batch or limits.share, limits.share)
    if limits.exactness == "bitwise":
        return Decision(
            "fail",
            last.micro_batch,
            f"a worker ran out of memory at step {last.step}: {_headline(last)}. train.exactness bitwise computes a shard "
            f"at once ({held} samples), which is not cut further: raise train.shards, or lower train.batch_size or the model",
        )
    if held <= 1:
        return Decision(
            "fail",
            last.micro_batch,
            f"a worker ran out of memory with a single sample at once, at step {last.step}: {_headline(last)}. "
            "Lower model.base_channels or model.depth (your own model: its size), or the images' size; with fewer workers on "
            "each machine, or a smaller train.batch_size, each has more memory",
        )
    half = held // 2
    return Decision(
        "retry",
        half,
        f"a worker ran out of memory with {held} samples at once, at step {last.step}; going on with train.micro_batch {half}, "
        "at the same train.batch_size",
    )


def _error(history: Sequence[Failure], limits: Limits) -> Decision:
    last = history[-1]
    if any(f.kind == "error" and (f.step, f.signature) == (last.step, last.signature) for f in history[:-1]):
        why = f"the same error a second time at step {last.step}"
    elif last.step <= last.start_step:
        why = f"not tried again: it came before a step was done, at step {last.step}"
    elif any(f.kind == "error" for f in _since_progress(history)[:-1]):
        why = f"at step {last.step}, the second error without a newer checkpoint in between"
    else:
        return Decision("retry", last.micro_batch, f"{_headline(last)} (at step {last.step}; tried again once)")
    return Decision("fail", last.micro_batch, f"{_headline(last)} ({why})")


def _lost_worker(history: Sequence[Failure], limits: Limits) -> Decision:
    last = history[-1]
    lost = sum(f.kind == "lost_worker" for f in _since_progress(history))
    where = f" on {last.node}" if last.node else ""
    when = f"at step {last.step}" if last.step > last.start_step else "before its first step"
    if lost <= limits.max_failures:
        return Decision("retry", last.micro_batch, f"a worker was lost{where} {when} ({lost} of {limits.max_failures})")
    return Decision(
        "fail",
        last.micro_batch,
        f"workers were lost {_times(lost)} without a newer checkpoint in between, scale.max_failures allows "
        f"{limits.max_failures}; the last one{where} {when}: {_headline(last)}. Raise scale.max_failures, or save "
        "more often: train.checkpoint_every_s",
    )


def _preemption(history: Sequence[Failure], limits: Limits) -> Decision:
    last = history[-1]
    count = sum(f.kind == "preemption" for f in history)
    where = f" of {last.node}" if last.node else ""
    if limits.max_preemptions is None or count <= limits.max_preemptions:
        of = "" if limits.max_preemptions is None else f" of {limits.max_preemptions}"
        return Decision("retry", last.micro_batch, f"preemption{where} at step {last.step} ({count}{of})")
    return Decision(
        "fail",
        last.micro_batch,
        f"the run was preempted {_times(count)}, scale.max_preemptions allows {limits.max_preemptions}; raise it, or null for "
        "any number",
    )


def _storage(history: Sequence[Failure], limits: Limits) -> Decision:
    last = history[-1]
    return Decision("fail", last.micro_batch, f"{last.message.strip()}. The last complete checkpoint is intact")


def _since_progress(history: Sequence[Failure]) -> Sequence[Failure]:
    """The failures since the first attempt that began at the latest start of all."""
    latest = max(failure.start_step for failure in history)
    return history[next(i for i, failure in enumerate(history) if failure.start_step == latest) :]


def _headline(failure: Failure) -> str:
    return (failure.message.strip().splitlines() or [failure.kind])[0].rstrip(".")


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")

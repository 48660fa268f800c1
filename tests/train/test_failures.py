"""What happens after a failure: kinds told apart by the real texts of torch and Ray, limits honoured, and always an end."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest
import ray.exceptions
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from raysweep.errors import CheckpointError, ConfigError, DiskError, StoreError
from raysweep.train.failures import Decision, Failure, Limits, classify, decide

LIMITS = Limits(max_failures=3, max_preemptions=None, share=16)


def kind_of(error: BaseException, *, draining: bool = False) -> str:
    return classify(type(error).__name__, str(error), draining=draining)


def actor_died(message: str, reason: Any = None) -> ray.exceptions.ActorDiedError:
    node = NodeDeathInfo(reason=reason) if reason is not None else None
    return ray.exceptions.ActorDiedError(
        ActorDiedErrorContext(
            error_message=message,
            class_name="RayTrainWorker",
            actor_id=b"\1" * 16,
            node_ip_address="10.0.0.7",
            pid=4242,
            node_death_info=node,
        )
    )


# As Ray 2.60 words it for a worker that got SIGKILL: memory is named, but as a guess.
KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by "
    "the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to "
    "SIGSEGV or another unexpected error."
)
NODE_GONE = (
    "The actor died because its node has died. Node Id: 5c5b\n\tthe actor's node was terminated unexpectedly: "
    "the agent is killed by the OS (e.g., out of memory)."
)


def torch_allocation_error() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    return caught.value


def numpy_allocation_error() -> BaseException:
    with pytest.raises(MemoryError) as caught:
        np.empty(10**16)
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"), "out_of_memory"),
        (torch_allocation_error(), "out_of_memory"),
        (numpy_allocation_error(), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (ray.exceptions.OutOfMemoryError("1 worker(s) were killed due to the node running low on memory."), "out_of_memory"),
        (WorkerGroupError("[Rank 1]\n1 worker(s) were killed due to the node running low on memory.", {}), "out_of_memory"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "disk"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "storage"),
        (CheckpointError("cannot write ckpt-000000007.pt: the disk is full"), "storage"),
        (StoreError("cannot write journal.jsonl"), "storage"),
        (ray.exceptions.OutOfDiskError("no room"), "disk"),
        (DiskError("cannot write ckpt: the disk is full"), "disk"),
        (actor_died(KILLED), "lost_worker"),
        (actor_died(NODE_GONE), "lost_worker"),
        (ray.exceptions.WorkerCrashedError(), "lost_worker"),
        (ray.exceptions.NodeDiedError("the node died"), "lost_worker"),
        (ray.exceptions.LocalRayletDiedError(), "lost_worker"),
        (ray.exceptions.ActorUnavailableError("connection lost", b"\1" * 16), "lost_worker"),
        (WorkerHealthCheckFailedError("A worker health check failed.", actor_died(KILLED)), "lost_worker"),
        (WorkerGroupError(f"[Rank 0 Error Snippet]:\n{actor_died(KILLED)}", {}), "lost_worker"),
        (ControllerError(WorkerGroupStartupTimeoutError(2)), "lost_worker"),
        (
            ControllerError(WorkerGroupStartupFailedError("At least one of the worker actors failed to initialize.")),
            "lost_worker",
        ),
        (ControllerError(actor_died(KILLED)), "lost_worker"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4021"), "lost_worker"),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1."), "lost_worker"),
        (torch.distributed.DistNetworkError("The client socket has failed to connect"), "lost_worker"),
        (PreemptionError(PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={"a": [1]})), "preemption"),
        (actor_died("Actor died by preemption."), "preemption"),
        (ValueError("Expected more than 1 value per channel"), "error"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
        (KeyError("gloo"), "error"),
        (ConfigError("the images do not fit the model"), "error"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_real_error_has_its_kind(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind
    assert kind_of(error, draining=True) == ("preemption" if kind == "lost_worker" else kind)


def test_an_actor_that_ray_calls_preempted_is_told_by_its_flag() -> None:
    error = actor_died(KILLED, NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED)
    assert error.preempted
    assert kind_of(error) == "lost_worker", "the text alone does not say it"
    assert kind_of(error, draining=error.preempted) == "preemption"


def failure(kind: Any, step: int = 10, start: int = 0, **changes: Any) -> Failure:
    return Failure(kind, changes.pop("message", "ValueError: wrong\nlast line"), "Traceback ...", step, start, **changes)


@pytest.mark.parametrize(
    ("set_to", "share", "then"), [(None, 16, 8), (16, 64, 8), (64, 16, 8), (5, 16, 2), (3, 16, 1), (2, 2, 1), (None, 1, None)]
)
def test_out_of_memory_halves_what_a_worker_holds_at_once(set_to: int | None, share: int, then: int | None) -> None:
    decision = decide([failure("out_of_memory", step=0, micro_batch=set_to)], Limits(0, 0, share))
    if then is None:
        assert decision.action == "fail"
        assert "train.batch_size" in decision.reason
        assert "model.base_channels" in decision.reason
    else:
        assert (decision.action, decision.micro_batch) == ("retry", then)
        assert f"train.micro_batch {then}" in decision.reason


def test_bitwise_is_not_cut_further() -> None:
    decision = decide([failure("out_of_memory")], Limits(3, None, 8, "bitwise"))
    assert decision.action == "fail"
    assert all(setting in decision.reason for setting in ("train.exactness", "train.shards", "train.batch_size"))


def test_what_was_halved_stays_halved_after_other_failures() -> None:
    history = [failure("out_of_memory"), failure("lost_worker", micro_batch=8), failure("preemption", micro_batch=8)]
    assert decide(history, LIMITS).micro_batch == 8
    assert decide([*history, failure("error", micro_batch=8)], LIMITS).micro_batch == 8


def test_an_error_is_tried_again_once_after_a_step_was_done() -> None:
    assert decide([failure("error", step=10, start=0)], LIMITS).action == "retry"
    at_once = decide([failure("error", step=10, start=10)], LIMITS)
    assert at_once.action == "fail"
    assert at_once.reason == "ValueError: wrong (not tried again: it came before a step was done, at step 10)"
    other = decide([failure("error", step=10), failure("error", step=12, message="KeyError: 3")], LIMITS)
    assert other.action == "fail"
    assert "without a newer checkpoint" in other.reason


@pytest.mark.parametrize("between", [[], ["lost_worker"], ["preemption", "out_of_memory"]])
def test_the_same_error_at_the_same_step_ends_the_run(between: list[Any]) -> None:
    history = [failure("error", 17, 0), *(failure(kind, 16, 5) for kind in between), failure("error", 17, 15)]
    decision = decide(history, LIMITS)
    assert decision.action == "fail"
    assert decision.reason == "ValueError: wrong (the same error a second time at step 17)"


def test_errors_with_progress_between_them_are_each_tried_again() -> None:
    assert decide([failure("error", 17, 0), failure("error", 40, 15)], LIMITS).action == "retry"
    again = failure("error", 17, 15, message="OSError: elsewhere\nanother last line")
    assert decide([failure("error", 17, 0), again], LIMITS).action == "retry"


def test_storage_ends_the_run_at_once_and_says_what_is_left() -> None:
    decision = decide([failure("storage", message="CheckpointError: cannot write ckpt.pt: the disk is full")], LIMITS)
    assert decision == Decision(
        "fail", None, "CheckpointError: cannot write ckpt.pt: the disk is full. The last complete checkpoint is intact"
    )


@given(st.integers(0, 6))
def test_max_failures_is_honoured_exactly(limit: int) -> None:
    limits = Limits(limit, None, 16)
    history = [failure("lost_worker", node="10.0.0.7")] * limit
    if history:
        assert decide(history, limits).action == "retry"
    decision = decide([*history, failure("lost_worker", node="10.0.0.7")], limits)
    assert decision.action == "fail"
    assert f"scale.max_failures allows {limit}" in decision.reason
    assert "10.0.0.7" in decision.reason


@given(st.integers(0, 6), st.integers(1, 5))
def test_progress_starts_the_count_of_lost_workers_anew(limit: int, rounds: int) -> None:
    limits, history = Limits(limit, None, 16), []
    for number in range(1, rounds + 1):
        history += [failure("lost_worker", start=number)] * limit
        assert not history or decide(history, limits).action == "retry"
    history.append(failure("lost_worker", start=0))  # a damaged checkpoint: begun earlier is no progress
    assert decide(history, limits).action == "fail"


@given(st.integers(0, 6))
def test_max_preemptions_counts_the_whole_run_and_nothing_else(limit: int) -> None:
    limits = Limits(0, limit, 16)
    history = [failure("preemption", start=number) for number in range(limit)]
    assert not history or decide(history, limits).action == "retry"
    decision = decide([*history, failure("preemption", start=limit)], limits)
    assert decision.action == "fail"
    assert f"scale.max_preemptions allows {limit}" in decision.reason
    assert decide([failure("preemption")] * 1000, Limits(0, None, 16)).action == "retry"
    if limit:
        assert decide([*history, failure("lost_worker", start=limit)], Limits(1, limit, 16)).action == "retry"


KINDS = st.sampled_from(["out_of_memory", "lost_worker", "preemption", "error", "storage"])


@given(
    st.lists(KINDS, min_size=1, max_size=5),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 64),
    st.sampled_from(["ddp", "bitwise"]),
)
def test_a_run_that_makes_no_progress_ends(
    kinds: list[Any], done: list[int], failures: int, preemptions: int, share: int, exactness: Any
) -> None:
    """Failures of any kinds come in turn, after any number of steps, none of which is ever saved."""
    limits = Limits(failures, preemptions, share, exactness)
    history: list[Failure] = []
    micro_batch = None
    for number in range(100):
        kind, steps = kinds[number % len(kinds)], done[number % len(done)]
        history.append(failure(kind, 50 + steps, 50, micro_batch=micro_batch))
        decision = decide(history, limits)
        if decision.action == "fail":
            return
        micro_batch = decision.micro_batch
    pytest.fail(f"tried again 100 times: {kinds}")


@given(st.lists(st.tuples(KINDS, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 64))
def test_every_decision_says_why_and_never_raises_the_micro_batch(events: list[Any], share: int) -> None:
    history = [failure(kind, start + steps, start) for kind, start, steps in events]
    decision = decide(history, Limits(2, None, share))
    assert decision.reason
    assert decision.micro_batch is None or 1 <= decision.micro_batch < share


def test_a_group_taken_from_under_a_worker_is_the_loss_of_another() -> None:
    with pytest.raises(ValueError) as caught:
        torch.distributed.broadcast_object_list([None], src=0)
    assert kind_of(caught.value) == "lost_worker", str(caught.value)
    assert kind_of(ValueError("a mistake in the loss")) == "error"

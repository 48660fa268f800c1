"""What Ray raises when workers fail, told in the words that decide; real exceptions, no cluster."""

from __future__ import annotations

import pytest
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerGroupStartupTimeoutError
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from raysweep.errors import CheckpointError
from raysweep.train.failures import classify, is_lack_of_room
from raysweep.train.ray_runtime import _told

PEER = UserExceptionWithTraceback(RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed by peer"), "Traceback ...")
FULL = UserExceptionWithTraceback(CheckpointError("cannot write ckpt-1.pt: the disk is full"), "Traceback ...")


def kind(error: BaseException) -> str:
    told = _told(error)
    return classify(told.type, told.message, draining=False)


def test_what_a_worker_raised_is_told_as_its_own() -> None:
    told = _told(WorkerGroupError("workers failed", {0: PEER}))
    assert told.type == "RuntimeError"
    assert "Connection closed by peer" in told.message
    assert kind(WorkerGroupError("workers failed", {0: PEER})) == "lost_worker", "its peer's machine has gone without a word"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_error_goes_before_its_echo_on_the_peers(order: tuple[int, int]) -> None:
    failures = {order[0]: PEER, order[1]: FULL}
    assert kind(WorkerGroupError("workers failed", dict(sorted(failures.items())))) == "storage"


def test_an_actor_that_ray_calls_preempted_is_a_preemption() -> None:
    class Taken(RayActorError):  # type: ignore[misc]
        preempted = True

    taken = Taken()
    assert kind(WorkerGroupError("workers failed", {0: PEER, 1: taken})) == "preemption"
    assert kind(WorkerGroupError("workers failed", {0: PEER, 1: RayActorError()})) == "lost_worker"


def test_a_start_without_room_is_known() -> None:
    told = _told(ControllerError(WorkerGroupStartupTimeoutError(2)))
    assert is_lack_of_room(told.message)
    assert not is_lack_of_room(_told(WorkerGroupError("workers failed", {0: PEER})).message)

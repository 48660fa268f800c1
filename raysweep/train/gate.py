"""A gate in front of an attempt's workers: Ray's controller can be started early, and waits there until the workers may start.

So that the controllers' processes import little, this module knows nothing of training.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import worker_group

_LOOK_S = 0.02


class Gate(WorkerGroupCallback):  # type: ignore[misc]
    """Holds a trainer back, in its controller's process, until `open` exists in a directory.

    It also names the placement group that holds the workers' CPUs, so that the driver can remove one that is left behind:
    Ray leaves it when a worker dies while the group starts, or when the controller is killed (measured with Ray 2.60).

    Args:
        directory: where `ready` is written, and `open` is looked for.
        name: of the placement group.

    Raises:
        RuntimeError: in the controller, when the directory goes: the attempt is given up before it began.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name

    def before_worker_group_start(self, worker_group_context: object) -> None:
        """Ray calls this before it asks for the workers' CPUs."""
        # Ray Train gives it no name and takes none; this is the controller's own process, which serves nothing else.
        worker_group.placement_group = functools.partial(worker_group.placement_group, name=self._name)
        try:
            (self._directory / "ready").touch()
        except FileNotFoundError:
            raise RuntimeError("this attempt was given up before it began") from None
        while not (self._directory / "open").exists():
            if not self._directory.exists():
                raise RuntimeError("this attempt was given up before it began")
            time.sleep(_LOOK_S)

"""Whether every machine of a cluster sees the sweep's directory; a node-local one would lose the checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

from raysweep.cluster.join import Cluster
from raysweep.errors import ClusterError
from raysweep.store.directory import SweepDirectory

_MARKER = ".shared"
_TIMEOUT_S = 60.0


def check_shared(directory: SweepDirectory, cluster: Cluster) -> None:
    """Ask each machine for a file that lies in the directory; with one machine there is nothing to ask.

    Raises:
        ClusterError: some machine does not see it; names the machines. A directory without a journal is taken away again.
    """
    if cluster.num_machines < 2:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    marker = directory.path / _MARKER
    marker.touch()

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def sees(path: str) -> bool:
        return Path(path).exists()

    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = {
        node["NodeManagerAddress"]: sees.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(str(marker))
        for node in nodes
    }
    blind = sorted(address for address, answer in asked.items() if not ray.get(answer, timeout=_TIMEOUT_S))
    marker.unlink()
    if blind:
        if not directory.journal.exists():  # it was made for this sweep just now, and holds its lock at most
            shutil.rmtree(directory.path)
        raise ClusterError(
            f"storage {directory.path.parent} is not seen by {len(blind)} of {len(nodes)} machines ({', '.join(blind[:5])}), "
            "their checkpoints would be lost; set `storage` (--storage) to a directory that all share (NFS, EFS, FSx)"
        )

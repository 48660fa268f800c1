"""Leak guards: a test that leaves something behind fails itself, not the test that comes after it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, and no verdict from a busy machine's clock.
settings.register_profile(
    "raysweep", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("raysweep")

# What is printed is compared: as where there is no terminal, however this run was started. And no test joins a cluster of ours.
_NOT_OURS = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES", "RAY_ADDRESS")
for _name in _NOT_OURS:
    os.environ.pop(_name, None)

# Set by the import of a library, not by a test; everything else that changes is a leak.
_SET_AT_IMPORT = (
    "PYTEST_",  # PYTEST_CURRENT_TEST, for each phase of each test
    "KMP_",  # torch's OpenMP: KMP_INIT_AT_FORK and the like
    "OMP_NUM_THREADS",  # ray, in the process that starts it
    "RAY_",  # ray.init and raysweep's own settings for the workers, read when they start
    "TORCHINDUCTOR_",  # torch.compile's cache directory
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS",  # raysweep.tune, read by Tune when a sweep starts
    "CUDA_MODULE_LOADING",  # torch.cuda
    "MPLCONFIGDIR",  # matplotlib, where the home directory cannot be written
)
_THREAD_GRACE_S = 60.0  # of a busy machine; a thread that ends is not waited for


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_SET_AT_IMPORT)}


@pytest.fixture(autouse=True)
def no_leaked_environment() -> Iterator[None]:
    """Fail a test that changes environment variables and leaves them so; they are put back for the next one."""
    before = _environment()
    yield
    after = _environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    assert not changed, f"leaked environment variables: {changed}; use monkeypatch.setenv"


@pytest.fixture(autouse=True)
def no_leaked_process_group() -> Iterator[None]:
    """Fail a test that leaves torch.distributed initialised; torch is not imported for it."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail("leaked a torch.distributed process group; call destroy_process_group")


def _is_ours(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith("raysweep")


@pytest.fixture(autouse=True)
def no_leaked_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread that keeps the process alive, or one of raysweep's own. Ray keeps its own: exempt."""
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("ray"):
        return
    deadline = time.monotonic() + _THREAD_GRACE_S
    left = [t for t in threading.enumerate() if t not in before and _is_ours(t)]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    names = [t.name for t in left if t.is_alive()]
    assert not names, f"leaked threads: {names}"


def _open_below(folder: Path) -> list[str]:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return []
    targets = []
    for link in descriptors.iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sorted(target for target in targets if target.startswith(f"{folder}/"))


@pytest.fixture(autouse=True)
def no_leaked_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves files below its tmp_path open (memory maps hold no descriptor). Ray is exempt."""
    tmp_path = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if tmp_path and not request.node.get_closest_marker("ray"):
        left = _open_below(tmp_path)
        assert not left, f"leaked open files: {left}"

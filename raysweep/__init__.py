"""raysweep: train a convolutional autoencoder, or your own model, on every GPU you have, and sweep its settings."""

from typing import Any

__version__ = "0.1.0"

_API = {
    "sweep": "raysweep.api",
    "open": "raysweep.api",
    "SweepResult": "raysweep.api",
    "Experiment": "raysweep.config",
    "Sweep": "raysweep.config",
    "RaysweepError": "raysweep.errors",
    "ConfigError": "raysweep.errors",
    "DataError": "raysweep.errors",
    "CheckpointError": "raysweep.errors",
    "TrialError": "raysweep.errors",
    "ClusterError": "raysweep.errors",
    "StoreError": "raysweep.errors",
}

__all__ = [*_API, "__version__", "train"]


def __getattr__(name: str) -> Any:
    # Looked up late: a report opens without torch and ray, which take seconds to import.
    from importlib import import_module

    if name == "train":
        return import_module("raysweep.train")  # the package, which can be called
    if name not in _API:
        raise AttributeError(f"module 'raysweep' has no attribute {name!r}")
    return getattr(import_module(_API[name]), name)

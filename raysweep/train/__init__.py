"""Training one experiment: the loop, its runtimes (this process, a process group, Ray Train) and its checkpoints.

The package can be called: `raysweep.train(experiment)` is api.train.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See raysweep.api.train."""
        # Importing any module of this package puts the package in the place of a function `raysweep.train`. The API
        # stands above training, so it is looked up when it is called, not imported.
        return import_module("raysweep.api").train(*args, **kwargs)


sys.modules[__name__].__class__ = _Package

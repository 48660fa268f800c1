"""The model of an experiment: the built-in family, or the user's own factory, "package.module:function".

What a user's model must keep to is checked here, before any worker starts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from raysweep.errors import ConfigError
from raysweep.models import Autoencoder, Shape, check_depth
from raysweep.settings import ModelConfig


def find_modules_in(directory: str | Path) -> None:
    """Let Python find the user's modules in a directory; a worker is given the one that its driver was started in."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def load_factory(name: str, setting: str = "model.factory") -> Callable[..., Any]:
    """The function behind "package.module:function"; the current directory is looked through, too.

    Args:
        name: of the function.
        setting: what names it, for errors.

    Raises:
        ConfigError: the module cannot be imported, has no such function, or what it has cannot be called.
    """
    module_name, _, function = name.partition(":")
    find_modules_in(Path.cwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{setting} {name}: cannot import {module_name} ({error}); "
            "run from the directory that holds it, or install the package"
        ) from error
    except Exception as error:  # whatever the user's code raises is the answer
        raise ConfigError(f"{setting} {name}: importing {module_name} raised {raised(error)}") from error
    factory = getattr(module, function, None)
    if factory is None:
        offered = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module_name]
        raise ConfigError(f"{setting} {name}: {module_name} has no {function}; it has {', '.join(offered) or 'no functions'}")
    if not callable(factory):
        raise ConfigError(f"{setting} {name}: {function} is a {type(factory).__name__}, it must be a function or a class")
    return factory  # type: ignore[no-any-return]


def build_model(config: ModelConfig, x_shape: Shape, y_shape: Shape, seed: int) -> nn.Module:
    """A model with first weights that follow from the seed alone, on the CPU.

    Args:
        config: the experiment's `model` section.
        x_shape: height, width, channels of X.
        y_shape: height, width, channels of Y.
        seed: the experiment's train.seed.

    Raises:
        ConfigError: the images do not fit the model, or the factory raised or returned no torch.nn.Module.
    """
    check_depth(config, x_shape, y_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not config.factory:
            return Autoencoder(config, x_shape[2], y_shape[2])
        model = _call_factory(config)
        if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
            # Lazy layers get their weights from the first input: here, from this seed, the same on every worker.
            _output(config, model, x_shape)
        return model


def _call_factory(config: ModelConfig) -> nn.Module:
    name = str(config.factory)
    ignored = sorted(config.model_fields_set - {"factory", "params"})
    if ignored:
        raise ConfigError(
            f"model.{ignored[0]} sets the built-in model and would do nothing for model.factory {name}; "
            f"pass it to the factory, model.params.{ignored[0]}, or leave it out"
        )
    factory = load_factory(name)
    try:
        inspect.signature(factory).bind(**config.params)
    except TypeError as error:
        raise ConfigError(f"model.factory {name}: model.params {config.params} do not fit it: {error}") from None
    except ValueError:
        pass  # a callable without a signature: calling it will tell
    try:
        model = factory(**config.params)
    except Exception as error:  # whatever the user's code raises is the answer
        raise ConfigError(f"model.factory {name}: called with model.params {config.params} it raised {raised(error)}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.factory {name} must return a torch.nn.Module, it returned a {type(model).__name__}")
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        kind = type(model).__name__
        raise ConfigError(
            f"model.factory {name} returned the model inside {kind}; return the bare model: raysweep copies it to each GPU"
        )
    elsewhere = {str(p.device) for p in model.parameters() if p.device.type != "cpu"}
    if elsewhere:
        raise ConfigError(
            f"model.factory {name} must return the model on the CPU, raysweep moves it to its worker's device; it is on "
            f"{', '.join(sorted(elsewhere))}; leave out .cuda() and .to(...)"
        )
    return model


def _output(config: ModelConfig, model: nn.Module, x_shape: Shape) -> Any:
    """What the model makes of two blank images, float32 [2, C, H, W] in the loader's memory layout, in evaluation mode."""
    was_training = model.training
    x = torch.zeros(2, *x_shape).permute(0, 3, 1, 2)
    try:
        with torch.no_grad():
            return model.eval()(x)
    except Exception as error:  # whatever the user's code raises is the answer
        raise ConfigError(
            f"model.factory {config.factory}: on an input of {list(x.shape)} the model raised {raised(error)}"
        ) from error
    finally:
        model.train(was_training)


def raised(error: Exception) -> str:
    """An error of the user's code in one line, with the place in that code: the last one outside torch and raysweep."""
    not_theirs = (str(Path(__file__).parent), str(Path(torch.__file__).parent), importlib.__file__, "<")
    places = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(not_theirs)]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def check_output(config: ModelConfig, model: nn.Module, x_shape: Shape, y_shape: Shape) -> None:
    """Run a user's model once on two blank images and compare its output with the target's shape.

    Raises:
        ConfigError: the model raises, has nothing to train, returns no tensor, or one of another shape than Y (it would
            broadcast silently).
    """
    if not config.factory:
        return
    output = _output(config, model, x_shape)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"model.factory {config.factory}: the model has no trainable parameters, so there is nothing to train")
    expected = (2, y_shape[2], y_shape[0], y_shape[1])
    if not isinstance(output, torch.Tensor):
        kind = type(output).__name__
        raise ConfigError(f"model.factory {config.factory}: the model must return one tensor, it returned a {kind}")
    if tuple(output.shape) != expected:
        raise ConfigError(
            f"model.factory {config.factory}: the output must have the target's shape [B, C, H, W] = {list(expected)}, "
            f"it is {list(output.shape)} for an input of {[2, x_shape[2], *x_shape[:2]]}; change the model, or the target images"
        )


def code_fingerprint(config: ModelConfig) -> str:
    """A hash of the source of the factory's module that comments and layout do not change; empty without a factory.

    Where another module defines the factory (`from mypkg.nets import build`), that module's source counts, too.

    Raises:
        ConfigError: the factory cannot be loaded.
    """
    if not config.factory:
        return ""
    factory = load_factory(config.factory)
    named, defining = config.factory.partition(":")[0], getattr(factory, "__module__", None)
    names = dict.fromkeys(name for name in (named, defining) if name in sys.modules)
    return hashlib.sha256("".join(_code(name) for name in names).encode()).hexdigest()[:12]


def _code(module_name: str) -> str:
    try:
        return ast.dump(ast.parse(inspect.getsource(sys.modules[module_name])))
    except (OSError, TypeError):
        return module_name  # no source at hand (a compiled extension): its name has to do

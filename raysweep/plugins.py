"""The model of an experiment: the built-in family, or the user's own factory, "package.module:function".

What a user's model must keep to is checked here, before any worker starts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raysweep.errors import ConfigError
from raysweep.experiment import ModelConfig
from raysweep.models import Autoencoder, Shape, check_depth


def load_factory(name: str) -> Callable[..., Any]:
    """The function behind "package.module:function"; the current directory is looked through, too.

    Raises:
        ConfigError: the module cannot be imported, has no such function, or what it has cannot be called.
    """
    module_name, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"model.factory {name}: cannot import {module_name} ({error}); "
            "run from the directory that holds it, or install the package"
        ) from error
    factory = getattr(module, function, None)
    if factory is None:
        offered = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module_name]
        raise ConfigError(f"model.factory {name}: {module_name} has no {function}; it has {', '.join(offered) or 'no functions'}")
    if not callable(factory):
        raise ConfigError(f"model.factory {name}: {function} is a {type(factory).__name__}, it must be a function or a class")
    return factory  # type: ignore[no-any-return]


def build_model(config: ModelConfig, x_shape: Shape, y_shape: Shape, seed: int) -> nn.Module:
    """A model with first weights that follow from the seed alone, on the CPU.

    Args:
        config: the experiment's `model` section.
        x_shape: height, width, channels of X.
        y_shape: height, width, channels of Y.
        seed: the experiment's train.seed.

    Raises:
        ConfigError: the images do not fit the model, or the factory returned no torch.nn.Module.
    """
    check_depth(config, x_shape, y_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not config.factory:
            return Autoencoder(config, x_shape[2], y_shape[2])
        factory = load_factory(config.factory)
        try:
            inspect.signature(factory).bind(**config.params)
        except TypeError as error:
            raise ConfigError(f"model.factory {config.factory}: model.params {config.params} do not fit it: {error}") from None
        except ValueError:
            pass  # a callable without a signature: calling it will tell
        model = factory(**config.params)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.factory {config.factory} must return a torch.nn.Module, it returned a {type(model).__name__}")
    return model


def check_output(config: ModelConfig, model: nn.Module, x_shape: Shape, y_shape: Shape) -> None:
    """Run a user's model once on two blank images and compare its output with the target's shape.

    Raises:
        ConfigError: the model raises, returns no tensor, or one of another shape than Y (it would broadcast silently).
    """
    if not config.factory:
        return
    was_training = model.training
    x = torch.zeros(2, x_shape[2], x_shape[0], x_shape[1])
    try:
        with torch.no_grad():
            output = model.eval()(x)
    except Exception as error:  # whatever the user's code raises is the answer
        raise ConfigError(f"model.factory {config.factory}: on an input of {list(x.shape)} the model raised {error!r}") from error
    finally:
        model.train(was_training)
    expected = (2, y_shape[2], y_shape[0], y_shape[1])
    if not isinstance(output, torch.Tensor):
        kind = type(output).__name__
        raise ConfigError(f"model.factory {config.factory}: the model must return one tensor, it returned a {kind}")
    if tuple(output.shape) != expected:
        raise ConfigError(
            f"model.factory {config.factory}: the output must have the target's shape [B, C, H, W] = {list(expected)}, "
            f"it is {list(output.shape)} for an input of {list(x.shape)}; change the model, or the target images"
        )


def code_fingerprint(config: ModelConfig) -> str:
    """A hash of the source of the factory's module that comments and layout do not change; empty without a factory.

    Raises:
        ConfigError: the factory cannot be loaded.
    """
    if not config.factory:
        return ""
    module = sys.modules[load_factory(config.factory).__module__]
    try:
        source = ast.dump(ast.parse(inspect.getsource(module)))
    except (OSError, TypeError):
        source = config.factory  # no source at hand (a compiled extension): its name has to do
    return hashlib.sha256(source.encode()).hexdigest()[:12]

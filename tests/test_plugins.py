"""A user's own model: found, called with its settings, held to the contract, and part of the trial's key."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.plugins import build_model, check_output, code_fingerprint, load_factory
from raysweep.settings import ModelConfig

SHAPE = (8, 6, 1)
NET = """
import torch
from torch import nn

def build(width, depth=1):
    layers = [nn.Conv2d(1, width, 3, padding=1), *[nn.Conv2d(width, width, 1) for _ in range(depth - 1)]]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 1))
"""

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into the current directory, where they are imported anew; nothing of them stays in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def write_module(source: str, name: str = "mynet_under_test.py") -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        forget()

    yield write_module
    forget()


def own(function: str = "build", module: str = "mynet_under_test", **settings: Any) -> ModelConfig:
    return ModelConfig.model_validate({"factory": f"{module}:{function}", **settings})


def built(config: ModelConfig, seed: int = 0) -> nn.Module:
    return build_model(config, SHAPE, SHAPE, seed)


def checked(config: ModelConfig) -> None:
    check_output(config, built(config), SHAPE, SHAPE)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([values.detach().flatten() for values in model.parameters()])


# Finding and calling it.


def test_a_factory_is_called_with_its_params(write: Write) -> None:
    write(NET)
    config = own(params={"width": 3, "depth": 2})
    model = built(config)
    assert [layer.out_channels for layer in model.children()] == [3, 3, 1]
    model.train()
    check_output(config, model, SHAPE, SHAPE)
    assert model.training


CLASS = """
from torch import nn

class Net(nn.Conv2d):
    def __init__(self, side):
        super().__init__(1, 1, side, padding=1)
"""


def test_a_class_can_be_the_factory(write: Write) -> None:
    write(CLASS)
    checked(own("Net", params={"side": 3}))
    with pytest.raises(ConfigError, match=r"\{'sides': 3\} do not fit it: missing a required argument: 'side'"):
        built(own("Net", params={"sides": 3}))


def test_modules_of_the_current_directory_are_found(write: Write) -> None:
    here = str(Path.cwd())
    write(NET)
    write("", "mypkg_under_test/__init__.py")
    write(NET, "mypkg_under_test/nets.py")
    assert here not in sys.path
    load_factory("mynet_under_test:build")
    load_factory("mypkg_under_test.nets:build")
    assert sys.path.count(here) == 1


def test_a_missing_module_is_refused_with_where_to_run(write: Write) -> None:
    expected = r"model\.factory gone_under_test:build: cannot import gone_under_test \(No module named .*run from the directory"
    with pytest.raises(ConfigError, match=expected):
        built(own(module="gone_under_test"))


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        ("def build(:\n", r"SyntaxError: invalid syntax .*mynet_under_test\.py, line 1"),
        ("import torch\nx = torch.zeros(2) + undefined\n", r"NameError: .*'undefined'.* \(mynet_under_test\.py, line 2\)"),
    ],
)
def test_a_module_that_cannot_be_run_is_refused_with_the_line(write: Write, source: str, raised: str) -> None:
    write(source)
    with pytest.raises(ConfigError, match=f"importing mynet_under_test raised {raised}"):
        built(own())


def test_a_missing_function_is_refused_with_those_that_are_there(write: Write) -> None:
    write(NET + "class Other(nn.Module):\n    pass\n")
    with pytest.raises(ConfigError, match=r"mynet_under_test has no create; it has build, Other$"):
        built(own("create"))
    write("x = 1\n")
    with pytest.raises(ConfigError, match=r"has no create; it has no functions$"):
        built(own("create"))


def test_what_cannot_be_called_is_refused(write: Write) -> None:
    write("build = {'width': 3}\n")
    with pytest.raises(ConfigError, match=r"build is a dict, it must be a function or a class"):
        built(own())


@pytest.mark.parametrize(
    ("params", "why"),
    [({}, "missing a required argument: 'width'"), ({"width": 1, "deep": 2}, "unexpected keyword argument 'deep'")],
)
def test_params_that_do_not_fit_are_refused(write: Write, params: dict[str, Any], why: str) -> None:
    write(NET)
    with pytest.raises(ConfigError, match=rf"model\.params .* do not fit it: .*{why}"):
        built(own(params=params))


def test_settings_of_the_builtin_model_are_refused_because_they_would_do_nothing(write: Write) -> None:
    write(NET)
    with pytest.raises(
        ConfigError, match=r"model\.depth sets the built-in model .* pass it to the factory, model\.params\.depth"
    ):
        built(own(params={"width": 2}, depth=3))


# What it has to return.


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return 3", r"must return a torch\.nn\.Module, it returned a int"),
        ("return None", r"must return a torch\.nn\.Module, it returned a NoneType"),
        ("return nn.Linear", r"must return a torch\.nn\.Module, it returned a type"),
        (
            "raise ValueError('width 0')",
            r"called with model\.params \{\} it raised ValueError: width 0 \(mynet_under_test\.py, line 3\)",
        ),
        ("return nn.DataParallel(nn.Conv2d(1, 1, 1))", r"inside DataParallel; return the bare model"),
        ("return nn.Conv2d(1, 1, 1, device='meta')", r"must return the model on the CPU, .* it is on meta; leave out \.cuda\(\)"),
    ],
)
def test_what_is_no_bare_model_on_the_cpu_is_refused(write: Write, body: str, why: str) -> None:
    write(f"from torch import nn\ndef build():\n    {body}\n")
    with pytest.raises(ConfigError, match=why):
        built(own())


FORWARD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)

    def forward(self, x):
        x = self.conv(x)
        return {}
"""


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (
            "x",
            r"must have the target's shape \[B, C, H, W\] = \[2, 1, 8, 6\], it is \[2, 2, 8, 6\] for an input of \[2, 1, 8, 6\]",
        ),
        ("x[:, :1, ::2]", r"= \[2, 1, 8, 6\], it is \[2, 1, 4, 6\]"),
        ("x[0, :1]", r"= \[2, 1, 8, 6\], it is \[1, 8, 6\]"),
        ("(x, x)", r"must return one tensor, it returned a tuple"),
        ("{'out': x}", r"must return one tensor, it returned a dict"),
        ("x.view(2, -1)", r"the model raised RuntimeError: view size is not compatible .* Use \.reshape"),
        (
            "self.conv(x)",
            r"on an input of \[2, 1, 8, 6\] the model raised RuntimeError: .*channels.* \(mynet_under_test\.py, line 12\)",
        ),
    ],
)
def test_an_output_that_does_not_fit_the_target_is_refused(write: Write, returned: str, why: str) -> None:
    write(FORWARD.replace("{}", returned))
    with pytest.raises(ConfigError, match=why):
        checked(own("Net"))


def test_the_target_may_have_another_size_than_x(write: Write) -> None:
    write("from torch import nn\ndef build():\n    return nn.Conv2d(1, 3, 2, stride=2)\n")
    config = own()
    check_output(config, build_model(config, SHAPE, (4, 3, 3), seed=0), SHAPE, (4, 3, 3))


def test_a_model_with_nothing_to_train_is_refused(write: Write) -> None:
    write("from torch import nn\ndef build():\n    return nn.Identity()\n")
    with pytest.raises(ConfigError, match="no trainable parameters"):
        checked(own())


# First weights.


LAZY = "from torch import nn\ndef build():\n    return nn.Sequential(nn.LazyConv2d(3, 3, padding=1), nn.LazyConv2d(1, 1))\n"


@pytest.mark.parametrize(("source", "params"), [(NET, {"width": 3}), (LAZY, {})])
def test_the_seed_decides_the_first_weights(write: Write, source: str, params: dict[str, Any]) -> None:
    write(source)
    config = own(params=params)
    torch.manual_seed(1)
    first, state = weights(built(config, seed=5)), torch.random.get_rng_state()
    torch.rand(3)
    assert torch.equal(weights(built(config, seed=5)), first)
    assert not torch.equal(weights(built(config, seed=6)), first)
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)


# The key.


def test_the_fingerprint_follows_the_code_not_its_layout(write: Write) -> None:
    config = own(params={"width": 3})
    write(NET)
    first = code_fingerprint(config)
    assert len(first) == 12
    write("# what it does\n" + NET.replace("(width, depth=1):", "(\n    width,  # channels\n    depth = 1\n):"))
    assert code_fingerprint(config) == first
    write(NET.replace("3, padding=1", "5, padding=2"))
    assert code_fingerprint(config) != first
    assert code_fingerprint(ModelConfig()) == ""


def test_the_fingerprint_follows_the_module_that_defines_the_factory(write: Write) -> None:
    config = own(module="mypkg_under_test", params={"width": 3})
    write("from mypkg_under_test.nets import build\n", "mypkg_under_test/__init__.py")
    write(NET, "mypkg_under_test/nets.py")
    first = code_fingerprint(config)
    write(NET.replace("depth=1", "depth=2"), "mypkg_under_test/nets.py")
    assert code_fingerprint(config) != first


def test_the_fingerprint_of_a_partial_follows_the_module_it_is_in(write: Write) -> None:
    config = own("small")
    source = f"import functools\n{NET}\nsmall = functools.partial(build, width=2)\n"
    write(source)
    first = code_fingerprint(config)
    checked(config)
    write(source.replace("width=2", "width=4"))
    assert code_fingerprint(config) != first

"""Reading YAML files, `--set key=value` and dotted keys, and turning pydantic's errors into one readable ConfigError.

What the keys mean lives in config.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from raysweep.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: 1e-4 is a float (PyYAML's YAML 1.1 reads text), off is text (there: false), 1:3 too (there: 63)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # PyYAML refuses it, with the line
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"line {line}: the key {key!r} stands twice; the second would hide the first")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag.removeprefix("tag:yaml.org,2002:") not in ("float", "bool", "int")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf|\.Inf|\.nan|\.NaN)$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse_text(text: str) -> Any:
    """The value of a YAML text; `1e-4` is a float."""
    return yaml.load(text, Loader=_Loader)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; an empty file is an empty mapping.

    Raises:
        ConfigError: the file is missing, unreadable, no YAML, or holds something other than a mapping.
    """
    try:
        value = parse_text(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a mapping (key: value), it holds a {type(value).__name__}")
    return value


def parse_set(assignments: Iterable[str]) -> dict[str, Any]:
    """`["optim.lr=1e-3"]` as `{"optim.lr": 0.001}`; values are read as YAML.

    Raises:
        ConfigError: an item has no `=`, no key, or a value that is no YAML.
    """
    overrides: dict[str, Any] = {}
    for item in assignments:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, got {item!r} (for example --set optim.lr=1e-3)")
        try:
            overrides[key.strip()] = parse_text(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {item}: the value is not valid YAML: {error}") from None
    return overrides


def merge(tree: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the nested mapping `tree` with every dotted key of `overrides` set.

    Raises:
        ConfigError: a dotted key goes through something that is no mapping.
    """
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tree.items()}
    for dotted, value in overrides.items():
        *parents, last = dotted.split(".")
        node = result
        for depth, part in enumerate(parents):
            child = node.get(part)
            if child is None:
                child = {}
            if not isinstance(child, Mapping):
                raise ConfigError(f"{dotted}: {'.'.join(parents[: depth + 1])} holds {child!r}, it has no keys below it")
            node[part] = dict(child)
            node = node[part]
        node[last] = value
    return result


def valid_names(root: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """The keys allowed at a path inside a pydantic tree; empty where any key is."""
    current: type[BaseModel] | None = root
    for part in path:
        field = current.model_fields.get(str(part)) if current else None
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return list(current.model_fields) if current else []


def unknown_key(dotted: str, names: list[str]) -> str:
    """One line that refuses an unknown key, with the nearest valid name and all of them."""
    near = difflib.get_close_matches(dotted.rpartition(".")[2], names, n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"{dotted}: unknown key{hint}; valid: {', '.join(names)}"


def _places(root: type[BaseModel], path: list[str]) -> list[str]:
    """Where a key that stands at a wrong place is known: a level above it, in a section beside its own, or one below."""
    *parents, last = path
    above = [parents[:-1], *([*parents[:-1], name] for name in valid_names(root, parents[:-1]))] if parents else []
    near = [*above, *([*parents, name] for name in valid_names(root, parents))]
    return [".".join([*place, last]) for place in near if last in valid_names(root, place)]


def config_error(error: ValidationError, root: type[BaseModel], origin: str) -> ConfigError:
    """All mistakes that pydantic found, one line each with its dotted key, as one ConfigError."""
    lines = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        dotted = ".".join(path)
        if item["type"] == "extra_forbidden":
            places = _places(root, path)
            refused = unknown_key(dotted, valid_names(root, path[:-1]))
            lines.append(f"{dotted}: unknown key here; it is {places[0]}" if len(places) == 1 else refused)
            continue
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] in ("model_type", "dict_type"):
            names = valid_names(root, path)
            text = "takes settings below it (key: value" + (f"; valid: {', '.join(names)})" if names else ")")
        elif item["type"] == "list_type":
            text = "takes a list, [...]"
        shown = "" if item["type"] in ("missing", "value_error") else f", got {item['input']!r}"
        lines.append(f"{dotted}: {text}{shown}" if dotted else text)
    head = f"{origin}: {len(lines)} mistakes" if len(lines) > 1 else origin
    return ConfigError(head + "".join(f"\n  {line}" for line in lines))

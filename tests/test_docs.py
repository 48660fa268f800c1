"""What the documents tell a reader to type is true: every snippet runs, or is checked against the settings and the commands.

An HTML comment before a snippet says more: `file: NAME` (written before anything runs; a first line `# NAME` does, too),
`run: CODE` (instead of the Python file itself), `run with: OPTIONS` (the command is run, with these options),
`plan with: OPTIONS` (the sweep is planned, with these options). Python snippets and `console` blocks always run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from raysweep.__main__ import app
from raysweep.config import Experiment, Sweep
from raysweep.models import Autoencoder, count_parameters
from raysweep.yamlfile import parse_text

ROOT = Path(__file__).parents[1]
_SNIPPET = re.compile(r"(?P<marks>(?:^<!--[^\n]*-->\n)*)^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- (file|run|run with|plan with): (.*) -->$", re.MULTILINE)
_NAMED = re.compile(r"# ([\w./-]+\.(?:yaml|py))\n")
_KINDS = ("python", "yaml", "bash", "console")
IMAGES = {"x.npy": 256, "y.npy": 256, "y_small.npy": 128}
"""Files of images that the documents speak of, and the sides of their images."""


@dataclass(frozen=True)
class Snippet:
    kind: str
    text: str
    marks: dict[str, str]


def snippets(page: str) -> list[Snippet]:
    """The fenced snippets of a document, in order."""
    found = []
    for match in _SNIPPET.finditer(page):
        marks = dict(_MARK.findall(match["marks"]))
        if named := _NAMED.match(match["text"]):
            marks.setdefault("file", named[1])
        found.append(Snippet(match["kind"], match["text"], marks))
    return found


def pages() -> list[Path]:
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def documents(*kinds: str) -> list[str]:
    """The documents that have snippets of these kinds, as names of tests."""
    return [str(p.relative_to(ROOT)) for p in pages() if any(s.kind in kinds for s in snippets(p.read_text(encoding="utf-8")))]


def snippets_of(document: str, *kinds: str) -> list[Snippet]:
    return [s for s in snippets((ROOT / document).read_text(encoding="utf-8")) if s.kind in kinds]


def write_files(document: str, directory: Path) -> None:
    for snippet in snippets_of(document, *_KINDS):
        if name := snippet.marks.get("file"):
            (directory / name).write_text(snippet.text)


def commands(snippet: Snippet) -> list[list[str]]:
    """The lines of a shell snippet, cut into words; comments and continued lines as a shell takes them."""
    lines = snippet.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def raysweep_arguments(words: list[str]) -> list[str] | None:
    """`python -m raysweep.train X` and `raysweep train X` as ["train", "X"]; None for other programs."""
    if words[:3] == ["python", "-m", "raysweep.train.ledger"]:
        return None  # a program of its own, for the sceptical
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "raysweep":
        return [*filter(None, [words[2].partition(".")[2]]), *words[3:]]
    return words[1:] if words[0] == "raysweep" else None


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """A command's name and its parameters.

    Raises:
        Exception: click's own: there is no such command or option.
    """
    group: Any = typer.main.get_command(app)
    top = group.context_class(group)
    name, command, rest = group.resolve_command(top, list(arguments))
    return name, command.make_context(name, rest, parent=top).params


def settings(arguments: list[str], directory: Path) -> Experiment | Sweep | None:
    """What a train or tune command would start with; None for other commands."""
    name, params = parsed(arguments)
    given = params.get("file")
    places = [place / given for place in (directory, ROOT) if given and (place / given).is_file()]
    assert places or not given, f"{given}: the document shows no such file, and the project has none"
    path = places[0] if places else None
    kind: Any = {"train": Experiment, "tune": Sweep}.get(name)
    return kind.from_file(path, params["sets"]) if kind else None


@pytest.mark.parametrize("document", documents("yaml"))
def test_settings_files_are_valid(document: str) -> None:
    for snippet in snippets_of(document, "yaml"):
        tree = parse_text(snippet.text)
        kind = Sweep if {"space", "experiment"} & set(tree) else Experiment
        kind.from_dict(tree, origin=snippet.marks.get("file", document))


@pytest.mark.parametrize("document", documents("bash"))
def test_commands_exist_and_take_what_they_are_given(document: str, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for snippet in snippets_of(document, "bash"):
        for words in commands(snippet):
            if words[0] == "make":
                assert {word for word in words[1:] if "=" not in word} <= set(targets), words
            if (arguments := raysweep_arguments(words)) is not None:
                settings(arguments, tmp_path)


# Run in a process of its own: one for all snippets of a document, in their order and in one directory.
_RUNNER = """
import contextlib, io, json, runpy, sys
from math import prod
from typer.testing import CliRunner

sys.path.insert(0, "")
for step in json.loads(sys.stdin.read()):
    print("-----", step, flush=True)
    if step["how"] == "file":
        runpy.run_path(step["what"], run_name="__main__")
    elif step["how"] == "code":
        exec(step["what"], {"__name__": "__main__"})
    elif step["how"] == "plan":
        from raysweep.config import Sweep
        from raysweep.tune.plan import make_plan

        sweep = Sweep.from_file(step["file"], step["sets"])
        trials = make_plan(sweep).trials
        assert len({t.key for t in trials}) == len(trials) == prod(len(d.values()) for d in sweep.space.values()), trials
    else:
        from raysweep.__main__ import app

        done = CliRunner().invoke(app, step["what"], catch_exceptions=False)
        print(done.output, flush=True)
        if "error" in step:
            expected, told = step["error"], done.stderr.strip()
            assert done.exit_code == 2, done.exit_code
            assert told.startswith(expected[:-3]) if expected.endswith("...") else told == expected, (told, expected)
        else:
            assert done.exit_code == 0, done.exit_code
assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
"""


def steps(document: str) -> list[dict[str, object]]:
    """What to run of a document, in order."""
    found: list[dict[str, object]] = []
    for snippet in snippets_of(document, *_KINDS):
        marks = snippet.marks
        if snippet.kind == "python":
            name = marks.get("file")
            code = marks.get("run", snippet.text)
            found.append({"how": "file", "what": name} if name and "run" not in marks else {"how": "code", "what": code})
        elif snippet.kind == "console":
            for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", snippet.text, re.MULTILINE):
                arguments = raysweep_arguments(shlex.split(command))
                assert arguments, command
                harmless = "--plan" if arguments[0] == "tune" else "--local"
                found.append({"how": "command", "what": [*arguments, harmless], "error": told.strip()})
        elif "run with" in marks:
            (arguments,) = map(raysweep_arguments, commands(snippet))
            found.append({"how": "command", "what": [*(arguments or []), *shlex.split(marks["run with"])]})
        elif "plan with" in marks:
            (arguments,) = map(raysweep_arguments, commands(snippet))
            _, params = parsed([*(arguments or []), *shlex.split(marks["plan with"])])
            found.append({"how": "plan", "file": str(params["file"]), "sets": params["sets"]})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in documents(*_KINDS) if steps(d)])
def test_snippets_run_and_messages_are_real(document: str, tmp_path: Path) -> None:
    write_files(document, tmp_path)
    rng = np.random.default_rng(0)
    for name, side in IMAGES.items():
        np.save(tmp_path / name, rng.integers(0, 256, (10, side, side, 1), dtype=np.uint8))
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(steps(document)),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_questions_network_is_the_reference_preset() -> None:
    (code,) = [s.text for s in snippets_of("docs/your-own-model.md", "python") if s.marks.get("file") == "mynet.py"]
    namespace: dict[str, object] = {}
    with torch.device("meta"):
        exec(code, namespace)
        theirs = namespace["build"]()  # type: ignore[operator]
        reference = Autoencoder(Experiment.from_dict({"model": {"preset": "reference"}}).model, 1, 1)
        assert theirs(torch.empty(1, 1, 256, 256)).shape == (1, 1, 256, 256)
    assert [p.shape for p in theirs.parameters()] == [p.shape for p in reference.parameters()]
    assert count_parameters(theirs) == 24_337_409


def test_the_guide_to_own_models_shows_all_that_this_test_can_check() -> None:
    shown = snippets_of("docs/your-own-model.md", *_KINDS)
    files = {s.marks["file"] for s in shown if "file" in s.marks}
    assert {"mynet.py", "before.py", "own.yaml", "own_sweep.yaml"} <= files
    kinds = {str(step["how"]) for step in steps("docs/your-own-model.md")}
    assert kinds == {"file", "code", "plan", "command"}
    assert sum("error" in step for step in steps("docs/your-own-model.md")) >= 6


# The checks themselves.

_PAGE = """
<!-- file: a.yaml -->
```yaml
train: {epochs: 2}
```
```yaml
# b.yaml
model: {depth: 2}
```
<!-- run with: --local -->
```bash
python -m raysweep.train a.yaml  # a comment
```
"""


def test_snippets_are_found_with_their_marks() -> None:
    assert [(s.kind, s.marks) for s in snippets(_PAGE)] == [
        ("yaml", {"file": "a.yaml"}),
        ("yaml", {"file": "b.yaml"}),
        ("bash", {"run with": "--local"}),
    ]
    assert commands(snippets(_PAGE)[2]) == [["python", "-m", "raysweep.train", "a.yaml"]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raysweep swep", "No such command"),
        ("python -m raysweep.tune --stroage x", "No such option"),
        ("raysweep train --workers 2 --seed", "No such option"),
    ],
)
def test_a_command_that_is_none_is_found(line: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        parsed(raysweep_arguments(shlex.split(line)) or [])


def test_a_command_with_a_file_that_nobody_shows_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"gone\.yaml: the document shows no such file"):
        settings(["train", "gone.yaml"], tmp_path)
    assert isinstance(settings(["tune", "sweeps/lr_depth.yaml"], tmp_path), Sweep)

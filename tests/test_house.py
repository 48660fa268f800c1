"""The house rules that a machine can check: small files, no machine's paths, living links, a report without torch or ray."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 300
WITHOUT_TORCH_AND_RAY = ["raysweep", "raysweep.config", "raysweep.store.results", "raysweep.report.build"]

# A home directory, or the place of one checkout; /tmp, /dev/shm, /mnt and the like are on every machine.
_MACHINE_PATH = re.compile(r"(?<![\w.~$}*])(?:/(?:work|home|root|Users)/[\w.-]|[A-Z]:\\\w)")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def files(*endings: str) -> list[Path]:
    """Files of the project: what lies in hidden folders, results or built folders is not ours."""
    built = {"results", "build", "dist", "__pycache__", "node_modules", "venv"}
    found = (path for path in ROOT.rglob("*") if path.suffix in endings and path.is_file())
    return sorted(p for p in found if not any(part.startswith(".") or part in built for part in p.relative_to(ROOT).parts))


def test_product_files_are_small_enough_to_read() -> None:
    lengths = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / "raysweep").rglob("*.py")
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_file_names_a_place_on_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files(".py", ".md", ".yaml", ".yml", ".toml")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if _MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (f"open('/{'home'}/anna/x.npy')", True),
        (f"path: /{'root'}/data", True),
        (f"C:{chr(92)}Users", True),
        ("~/raysweep", False),
        ("https://example.org/home/page", False),
        ("/mnt/raysweep/x", False),
    ],
)
def test_what_counts_as_a_place_on_one_machine(line: str, bad: bool) -> None:
    assert bool(_MACHINE_PATH.search(line)) == bad


def documents() -> list[Path]:
    return [path for path in files(".md") if path.parent == ROOT or (ROOT / "docs") in path.parents]


def dead_links(path: Path) -> list[str]:
    text = _CODE.sub("", path.read_text(encoding="utf-8"))
    targets = [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:|#", target)]
    return [target for target in targets if not (path.parent / target.partition("#")[0]).exists()]


def test_links_between_documents_are_alive() -> None:
    found = {str(path.relative_to(ROOT)): dead for path in documents() if (dead := dead_links(path))}
    assert found == {}


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "here.md").write_text("x")
    page = tmp_path / "page.md"
    page.write_text(
        '[a](here.md#part) [b](https://example.org/x) [c](#top) ![d](gone.png "title") [e](<away/gone.md>)\n'
        "```\n[in code](not-a-link)\n```\nand `[f](g)`\n"
    )
    assert dead_links(page) == ["gone.png", "away/gone.md"]


def test_configuration_results_and_report_need_neither_torch_nor_ray() -> None:
    program = f"""
import importlib, sys
for name in {WITHOUT_TORCH_AND_RAY!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in ("torch", "ray") if heavy in sys.modules]
    assert not loaded, f"import {{name}} loads {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


def test_a_new_ray_touches_two_places() -> None:
    """import-linter cannot tell ray.train from ray, so the imports are read here."""
    places: dict[str, set[str]] = {"ray.train": set(), "ray.tune": set()}
    for path in sorted((ROOT / "raysweep").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for part, found in places.items():
                if any(name == part or name.startswith(f"{part}.") for name in names):
                    found.add(path.relative_to(ROOT).as_posix())
    assert places["ray.train"] == {"raysweep/train/ray_runtime.py", "raysweep/train/gate.py"}
    assert all(place.startswith("raysweep/tune/") for place in places["ray.tune"])

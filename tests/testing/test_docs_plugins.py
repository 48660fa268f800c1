"""The searcher and the scheduler of docs/own-search.md pass the suites, as the page says, by the page's own test file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"^<!-- file: (\S+\.py) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_pass_the_suites(tmp_path: Path) -> None:
    files = dict(_FILE.findall((ROOT / "docs" / "own-search.md").read_text(encoding="utf-8")))
    assert set(files) == {"mysearch.py", "myrule.py", "test_mine.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "15 passed" in done.stdout

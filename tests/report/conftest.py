"""The fixture that every test of the report starts from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from report_sweeps import Make, write_journal

from raysweep.report.figures import STYLE


@pytest.fixture(autouse=True)
def coarse_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels: what is tested is that the figures are drawn, and of what."""
    monkeypatch.setitem(STYLE, "figure.dpi", 30)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a sweep's directory and returns it."""
    return partial(write_journal, tmp_path)

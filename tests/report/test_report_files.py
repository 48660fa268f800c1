"""The report's files and its command: whole, self-contained, safe to open, the same every time."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from report_sweeps import NAN, Make, diverged, failed, grid_trials, trial, write_journal, write_samples
from typer.testing import CliRunner

from raysweep.__main__ import app
from raysweep.errors import StoreError
from raysweep.report import build
from raysweep.report.__main__ import newest_directory
from raysweep.report.build import build_report

FILES = ["trials.csv", "rows.parquet", "curves.png", "map.png", "images.png", "report.md", "report.html"]
HOSTILE = "</pre><script>alert(1)</script><img src=http://evil.example/x.png onerror=alert(1)> | `x` ```"


SMALL = [trial({"optim.lr": lr, "model.depth": 2}, lr * 20) for lr in (1e-3, 1e-2)]


class Page(HTMLParser):
    """The tags and attributes of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a sweep of sixteen trials with its report; only read it."""
    directory = write_journal(tmp_path_factory.mktemp("built"), grid_trials())
    write_samples(directory, 8)
    assert build_report(directory) == directory / "report.html"
    return directory


def test_all_files_are_written_and_complete(built: Path) -> None:
    directory = built
    assert sorted(p.name for p in directory.iterdir() if p.is_file()) == sorted([*FILES, "journal.jsonl"])
    trials = pd.read_csv(directory / "trials.csv")
    assert len(trials) == 16
    assert trials["trial"].tolist() == list(range(16))
    assert len(pd.read_parquet(directory / "rows.parquet")) == 15 * 3 + 2
    markdown = (directory / "report.md").read_text()
    assert "![Map](map.png)" in markdown
    assert "![Images](images.png)" in markdown
    assert "27x below the mean image" in markdown
    page = (directory / "report.html").read_text()
    order = [
        "Best: lr 0.01",
        "16 planned",
        ">Map<",
        ">Learning curves<",
        ">Images<",
        ">Trials<",
        ">Data<",
        ">Settings<",
        "python -m",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_integers_stay_integers_in_trials_csv(make: Make) -> None:
    at = {"optim.lr": 1e-3, "model.depth": 2}
    trials = [trial(at, NAN), trial({"optim.lr": 1e-3}, 0.1), failed(at, "E"), trial(at, status=None)]
    header, *lines = (build_report(make(trials)).parent / "trials.csv").read_text().splitlines()
    place = {name: n for n, name in enumerate(header.split(","))}
    for name in ("trial", "depth", "epochs", "best_epoch", "parameters", "world_size", "attempts"):
        cells = {line.split(",")[place[name]] for line in lines if re.match(r"\d+,0000", line)}
        assert all(re.fullmatch(r"\d*", cell) for cell in cells), (name, cells)


def test_the_page_needs_nothing_from_outside(built: Path) -> None:
    text = (built / "report.html").read_text()
    page = Page(text)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data", "action", "poster")]
    assert len(sources) == 3
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"url\(|@import", text)


def test_texts_are_escaped(make: Make) -> None:
    experiment = {"model": {"factory": "pack.age:function", "params": {"word": "a"}}}
    trials = [failed({"model.params.word": HOSTILE}, HOSTILE), trial({"model.params.word": "b|c"}, 0.1)]
    data = {"source": HOSTILE, "fingerprint": HOSTILE, "baseline_mean_image": 0.2}
    directory = make(trials, {"model.params.word": {"choice": [HOSTILE, "b|c"]}}, data, name="<i>&name", experiment=experiment)
    text = build_report(directory).read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert "i" not in page.tags
    assert page.tags.count("img") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "&lt;script&gt;" in text
    markdown = (directory / "report.md").read_text()
    outside_fences = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", markdown)
    assert "<script>" not in outside_fences
    assert "b\\|c" in outside_fences
    assert "````" in markdown  # a fence longer than the one inside


def test_the_same_journal_gives_the_same_bytes(make: Make) -> None:
    directory = make(SMALL)
    write_samples(directory, 0)
    build_report(directory)
    first = {name: (directory / name).read_bytes() for name in FILES}
    build_report(directory)
    assert {name: (directory / name).read_bytes() for name in FILES} == first


def test_a_figure_of_an_earlier_report_does_not_stay(make: Make) -> None:
    directory = make(SMALL[:1])
    samples = write_samples(directory, 0)
    build_report(directory)
    samples.unlink()
    assert "has kept none" in build_report(directory).read_text()
    assert not (directory / "images.png").exists()


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        ([failed({"optim.lr": 1e-3}, "RuntimeError: A"), failed({"optim.lr": 1e-2}, "RuntimeError: A")], "all 2 trials failed"),
        ([diverged({"optim.lr": 1e-3}, NAN), diverged({"optim.lr": 1e-2}, NAN)], "all 2 trials diverged"),
        ([trial({"optim.lr": 1e-3}, NAN), trial({"optim.lr": 1e-2}, NAN)], "no trial has a finite val_loss"),
        ([trial({"optim.lr": 1e-3}, status=None), trial({"optim.lr": 1e-2}, status=None)], "no trial has reported an epoch"),
        ([trial({"optim.lr": 1e-3}, 0.02)], "Best: lr 0.001"),
        ([], "holds no trial"),
    ],
)
def test_every_state_has_a_report_with_every_planned_trial(make: Make, trials: list[object], text: str) -> None:
    directory = make(trials, {"optim.lr": {"grid": [1e-3, 1e-2]}})
    assert text in build_report(directory).read_text()
    assert len(pd.read_csv(directory / "trials.csv")) == len(trials)


def test_a_run_without_a_sweep_has_curves_and_no_map(make: Make) -> None:
    directory = make([trial({}, 0.2, 0.02)], space=None)
    page = build_report(directory).read_text()
    assert "Best: trial 0: val_loss 0.0200" in page
    assert ">Map<" not in page
    assert (directory / "curves.png").exists()
    assert not (directory / "map.png").exists()


def test_a_disk_that_is_full_is_an_error_with_a_way_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build, "write_atomically", full)
    with pytest.raises(StoreError, match=r"trials\.csv: the disk is full"):
        build_report(make([trial({"optim.lr": 1e-3}, 0.1)]))


def test_command_prints_the_answer_and_the_path_last(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = make(SMALL[:1], name="results/" + "long" * 40)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Best: lr 0.001, depth 2")
    assert "1 planned: 1 completed." in " ".join(lines)
    assert lines[-1] == str(Path("results") / directory.name / "report.html")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert CliRunner().invoke(app, ["report", str(directory)]).stdout.splitlines()[-1] == str(directory / "report.html")


def test_command_takes_the_newest_journal(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = (make([], name=f"results/{name}") for name in ("b", "a"))
    os.utime(old / "journal.jsonl", (1, 1))
    assert newest_directory(tmp_path / "results") == new


@pytest.mark.parametrize("arguments", [[], ["missing"]])
def test_command_refuses_without_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 2
    assert "journal.jsonl" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_the_report_loads_neither_torch_nor_ray_nor_pyplot() -> None:
    program = (
        "import sys, raysweep.report.__main__; print([m for m in ('torch', 'ray', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("statuses", "heading"),
    [
        (["failed"], "Failed trials"),
        (["infeasible"], "Infeasible trials"),
        (["infeasible", "failed"], "Failed and infeasible trials"),
    ],
)
def test_the_heading_of_what_was_not_trained_is_true_of_it(make: Make, statuses: list[str], heading: str) -> None:
    trials = [failed({"model.depth": n + 1}, f"error {n}", status=status) for n, status in enumerate(statuses)]
    directory = make([*SMALL, *trials])
    build_report(directory)
    assert f"## {heading}\n" in (directory / "report.md").read_text()
    assert f"<h2>{heading}</h2>" in (directory / "report.html").read_text()

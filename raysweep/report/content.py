"""What the report says, gathered once: texts, tables and PNGs. How it looks in HTML or Markdown is page.py."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from raysweep.report import answer as sentences
from raysweep.report import tables
from raysweep.report.figures import curves_figure, drawn, shown_baselines
from raysweep.report.heatmap import map_figure
from raysweep.report.population import population_table, population_text
from raysweep.report.seeds import exceptions, seeds_table
from raysweep.report.stopping import stopping_table
from raysweep.report.strip import read_samples, strip_figure
from raysweep.report.workers import workers_table
from raysweep.store.results import Results


@dataclass(frozen=True)
class Picture:
    """One figure: its file's name and its PNG, or None and a sentence that says why it is left out."""

    heading: str
    file: str
    png: bytes | None
    caption: str


@dataclass(frozen=True)
class Content:
    """The report from top to bottom."""

    title: str
    answer: str
    remarks: tuple[str, ...]
    status: str
    pictures: tuple[Picture, ...]
    leaderboard: tables.Table
    failures: tuple[tables.Failure, ...]
    workers: tables.Table
    population: tables.Table
    population_text: str
    stopping: tables.Table | None
    seeds: tables.Table | None
    facts: tables.Table
    settings: str
    command: str
    good: bool
    """Whether there is a best trial that beats the mean image, or no mean image to compare with."""


def gather(results: Results) -> Content:
    """Everything that the report shows, from the results and the best trial's images."""
    name = results.sweep.name if results.sweep else "run"
    directory = results.directory.path
    return Content(
        title=name if directory.name == name else f"{name} ({directory.name})",
        answer=sentences.answer(results),
        remarks=tuple(sentences.remarks(results)),
        status=sentences.status(results),
        pictures=_pictures(results),
        leaderboard=tables.explained(tables.leaderboard(results)),
        failures=tuple(tables.failures(results)),
        workers=workers_table(results),
        population=population_table(results),
        population_text=population_text(results),
        stopping=stopping_table(results),
        seeds=seeds_table(results),
        facts=tables.facts(results),
        settings=tables.settings_yaml(results),
        command=f"python -m raysweep.report {shlex.quote(str(directory))}",
        good=results.best is not None and not sentences.worse_than_mean_image(results),
    )


def _pictures(results: Results) -> tuple[Picture, ...]:
    pictures = []
    if results.sweep:
        png = drawn(lambda: map_figure(results))
        caption = _map_caption(results) if png else "No map: no setting differs among the trials."
        pictures.append(Picture("Map", "map.png", png, caption))
    png = drawn(lambda: curves_figure(results))
    caption = _curves_caption(results) if png else f"No curves: no trial has reported a finite {results.metric}."
    pictures.append(Picture("Learning curves", "curves.png", png, caption))
    samples = read_samples(results.best_directory())
    if isinstance(samples, str):
        pictures.append(Picture("Images", "images.png", None, samples))
    else:
        caption = "Validation images of the best trial: what it was given, what was expected, and its output."
        pictures.append(Picture("Images", "images.png", drawn(lambda: strip_figure(samples)), caption))
    return tuple(pictures)


def _curves_caption(results: Results) -> str:
    dashed = "; dashed: what no model at all would get" if shown_baselines(results) else ""
    copied = " A member that copied has the colour of the settings that it had at its best." if len(results.population) else ""
    return f"{results.metric} after every epoch{dashed}.{copied}"


def _map_caption(results: Results) -> str:
    if not results.has_seeds:
        return "The best value of each trial over its epochs; the darker, the better."
    return f"The mean over each configuration's seeds, by which they are ranked; the darker, the better.{exceptions(results)}"

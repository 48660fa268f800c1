"""Every state of a sweep has its figures, and what has no value is never on the colour scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_sweeps import DATA, NAN, Make, Trial, diverged, failed, grid_trials, trial, write_samples

from raysweep.report.cells import colour_range, sweep_map
from raysweep.report.content import gather
from raysweep.report.figures import curves_figure, drawn
from raysweep.report.heatmap import map_figure
from raysweep.report.strip import displayed, read_samples, strip_figure
from raysweep.store.results import load

PNG = b"\x89PNG"
LR = {"optim.lr": {"grid": [1e-4, 1e-3]}}


def test_map_of_lr_and_depth_marks_what_has_no_value(make: Make) -> None:
    trials = grid_trials()
    trials[0] = failed(trials[0]["overrides"], "RuntimeError: A")
    trials[1] = trial(trials[1]["overrides"], status=None)
    content = sweep_map(load(make(trials, finish=None)))
    assert content is not None
    assert content.y is not None
    assert content.is_grid
    assert (content.x.name, content.x.log, content.y.name, content.y.log) == ("lr", True, "depth", False)
    kinds = {cell.trial: cell.kind for cell in content.cells}
    assert [n for n, kind in kinds.items() if kind == "value"] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert (kinds[0], kinds[1], kinds[11], kinds[15]) == ("failed", "missing", "worse", "diverged")
    assert all((cell.value is None) == (cell.kind in ("failed", "missing", "diverged")) for cell in content.cells)
    assert content.best == 8


def test_a_cell_shows_the_best_of_its_trials(make: Make) -> None:
    space = {"optim.lr": {"grid": [1e-4, 1e-3]}, "model.depth": {"grid": [1, 2]}, "train.seed": {"grid": [0, 1]}}
    trials = [
        trial({"optim.lr": lr, "model.depth": d, "train.seed": s}, 0.01 * (1 + s) if lr == 1e-4 else NAN)
        for lr in (1e-4, 1e-3) for d in (1, 2) for s in (1, 0)
    ]  # fmt: skip
    content = sweep_map(load(make(trials, space)))
    assert content is not None
    assert content.others == ("seed",)
    assert [(c.trial, c.value, c.num_trials) for c in content.cells if c.kind == "value"] == [(1, 0.01, 2), (3, 0.01, 2)]


def test_one_huge_value_does_not_flatten_the_colours() -> None:
    low, high, log = colour_range([0.004, 0.005, 0.006, 0.01, 1e9], lower_is_better=True)
    assert log
    assert low == pytest.approx(0.004)
    assert high < 0.1
    low, high, log = colour_range([-3.0, 0.0, 2.0], lower_is_better=True)
    assert not log
    assert (low, high) == (-3.0, 2.0)
    low, high, log = colour_range([24.0, 25.0, 26.0, -900.0], lower_is_better=False)
    assert not log
    assert low > 0
    assert high == 26.0
    assert colour_range([0.5], lower_is_better=True)[0] < 0.5 < colour_range([0.5], lower_is_better=True)[1]


def both(directory: Path) -> tuple[bytes | None, bytes | None]:
    results = load(directory)
    return drawn(lambda: map_figure(results)), drawn(lambda: curves_figure(results))


def spread(kind: str, at: Trial) -> list[Trial]:
    """Two trials at lr 1e-4 and 1e-3 that both end the same way."""
    made = {
        "diverged at once": [diverged(o, NAN) for o in at["overrides"]],
        "diverged later": [diverged(o, 0.5, 1e30, NAN) for o in at["overrides"]],
        "failed": [failed(o, "E: x") for o in at["overrides"]],
        "infeasible": [failed(o, "too deep", status="infeasible") for o in at["overrides"]],
        "nan": [trial(o, NAN, NAN) for o in at["overrides"]],
        "unfinished": [trial(o, status=None) for o in at["overrides"]],
        "zero": [trial(o, 0.0, 0.0) for o in at["overrides"]],
        "negative": [trial(o, -1.0, -2.0) for o in at["overrides"]],
        "equal": [trial(o, 0.1, 0.1) for o in at["overrides"]],
    }
    return made[kind]


@pytest.mark.parametrize(
    "kind", ["diverged at once", "diverged later", "failed", "infeasible", "nan", "unfinished", "zero", "negative", "equal"]
)
def test_no_state_breaks_the_figures(make: Make, kind: str) -> None:
    # The map of two settings; of one setting where the scale has the most to get wrong.
    depths = (2,) if kind in ("diverged at once", "negative", "zero") else (1, 2)
    space = {"optim.lr": {"grid": [1e-4, 1e-3]}, "model.depth": {"grid": list(depths)}}
    overrides = [{"optim.lr": lr, "model.depth": d} for lr in (1e-4, 1e-3) for d in depths]
    trials = spread(kind, {"overrides": overrides})
    drawn_map, curves = both(make(trials, space))
    assert drawn_map is not None
    assert drawn_map.startswith(PNG)
    expected = kind in ("diverged later", "zero", "negative", "equal")
    assert (curves is not None) == expected


def test_one_trial_has_curves_and_no_map(make: Make) -> None:
    drawn_map, curves = both(make([trial({"optim.lr": 1e-3, "model.depth": 2}, 0.02)]))
    assert drawn_map is None
    assert curves is not None


@pytest.mark.parametrize(
    ("space", "values"),
    [
        ({"model.activation": ["relu", "gelu"]}, [("relu",), ("gelu",)]),
        ({"model.activation": ["relu", "gelu"], "model.skip": [True, False]}, [("relu", True), ("gelu", False), ("relu", False)]),
        ({"optim.lr": [1e-3, 1e-2], "model.skip": [True, False]}, [(1e-3, True), (1e-2, False)]),
        ({"optim.betas": [[0.9, 0.99], [0.5, 0.9]]}, [([0.9, 0.99],), ([0.5, 0.9],)]),
        ({"optim.clip_norm": [None, 1.0, 2.0], "optim.lr": [1e-3, 1e-2]}, [(None, 1e-3), (1.0, 1e-2), (2.0, 1e-3)]),
    ],
)
def test_settings_that_are_no_numbers(make: Make, space: dict[str, list[object]], values: list[tuple[object, ...]]) -> None:
    trials = [trial(dict(zip(space, given, strict=True)), 0.02 + n / 100) for n, given in enumerate(values)]
    drawn_map, curves = both(make(trials, {key: {"choice": listed} for key, listed in space.items()}))
    assert drawn_map is not None
    assert curves is not None


def test_grid_with_negative_values_and_hostile_texts(make: Make) -> None:
    experiment = {"model": {"factory": "pack.age:function", "params": {"shift": 0, "$x^{_": "$\\frac{"}}}
    space = {"model.params.shift": {"grid": [-100, 0, 100]}, "model.params.scale": {"grid": [-1.5, 2.0]}}
    trials = [
        trial({"model.params.shift": x, "model.params.scale": y}, abs(x) / 100 + abs(y))
        for x in (-100, 0, 100)
        for y in (-1.5, 2.0)
    ]
    directory = make(trials, space, experiment=experiment)
    content = sweep_map(load(directory))
    assert content is not None
    assert content.is_grid
    assert not content.x.log
    assert content.x.values == (-100, 0, 100)
    assert both(directory)[0] is not None
    named = {"model.params.$x^{_": {"choice": ["$\\frac{", "<b>"]}}
    trials = [trial({"model.params.$x^{_": value}, 0.1) for value in ("$\\frac{", "<b>")]
    assert both(make(trials, named, name="hostile", experiment=experiment))[0] is not None


def test_random_search_is_drawn_as_points(make: Make) -> None:
    rng = np.random.default_rng(0)
    space = {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.dropout": {"uniform": [0.0, 0.5]}}
    trials = [
        trial({"optim.lr": float(10 ** rng.uniform(-5, -1)), "model.dropout": float(rng.uniform(0, 0.5))}, 0.5, 0.01 + n / 1000)
        for n in range(40)
    ]
    directory = make(trials, space)
    content = sweep_map(load(directory))
    assert content is not None
    assert not content.is_grid
    assert content.x.name == "lr"
    assert len(content.cells) == 40
    assert all(both(directory))


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_images_of_any_channels_and_sizes(tmp_path: Path, channels: int) -> None:
    x = np.full((8, 5, 9, channels), 2.0, np.float32)
    x[0, 0, 0, 0] = np.nan
    path = write_samples(tmp_path, 0, x=x, y=np.zeros((8, 4, 4, 1)), output=np.ones((8, 4, 4, 1)))
    samples = read_samples(path.parent)
    assert not isinstance(samples, str)
    assert displayed(samples["x"][0]).shape == ((5, 9, 3) if channels == 3 else (5, 9))
    assert displayed(samples["x"][0]).min() == 0
    assert displayed(samples["x"][0]).max() == 1
    png = drawn(lambda: strip_figure(samples))
    assert png is not None
    assert png.startswith(PNG)


def test_images_that_are_not_there_or_damaged_give_a_sentence(tmp_path: Path) -> None:
    assert "no best trial" in str(read_samples(None))
    assert "has kept none" in str(read_samples(tmp_path))
    path = write_samples(tmp_path, 0, x=np.zeros((3, 4, 4)))
    assert "must hold three arrays" in str(read_samples(path.parent))
    path.write_bytes(path.read_bytes()[:100])
    assert "cannot be read" in str(read_samples(path.parent))
    np.savez(path, x=np.zeros((1, 2, 2, 1)))
    assert "cannot be read" in str(read_samples(path.parent))


@pytest.mark.parametrize(("metric", "data", "dashed"), [("val_loss", DATA, True), ("psnr", DATA, False), ("val_loss", {}, False)])
def test_the_curves_caption_speaks_of_dashed_lines_where_there_are_some(
    make: Make, metric: str, data: dict[str, Any], dashed: bool
) -> None:
    results = load(make(grid_trials(), metric=metric, data=data))
    figure = curves_figure(results)
    assert figure is not None
    assert any(line.get_linestyle() == "--" for line in figure.axes[0].lines) == dashed
    caption = next(picture.caption for picture in gather(results).pictures if picture.file == "curves.png")
    assert ("dashed" in caption) == dashed

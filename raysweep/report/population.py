"""What a population (scheduler pbt) copied: one line a copy, and how the best weights came about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysweep.report.tables import Table, measured, number, settings_text
from raysweep.store.results import Results


def population_table(results: Results, limit: int = 50) -> Table:
    """Who copied whom, after which epoch, and each setting before and after; empty where nobody did."""
    copies, metric = results.population, results.metric
    names = list(results.params.values())
    values = (
        {(int(t), int(e)): v for t, e, v in results.rows[["trial", "epoch", metric]].itertuples(index=False)}
        if len(copies)
        else {}
    )
    rows = []
    for copy in copies.head(limit).to_dict("records"):
        own, donors = (measured(values.get((int(copy[who]), int(copy["epoch"])))) for who in ("trial", "from"))
        row = [str(copy[name]) for name in ("epoch", "trial", "from")]
        row += [_change(own, donors), *(_change(number(copy[f"{n}_before"], 4), number(copy[n], 4)) for n in names)]
        rows.append(tuple(row))
    more = len(copies) - len(rows)
    note = f"... {more} more in journal.jsonl" if more > 0 else ""
    return Table(("after epoch", "trial", "copied", metric, *names), tuple(rows), numeric=frozenset({0, 1, 2}), note=note)


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def population_text(results: Results) -> str:
    """How the best trial's weights came about, with the settings of each stretch of epochs; "" where nobody copied."""
    best = results.best
    if results.population.empty or best is None:
        return ""
    parts = [
        f"to epoch {until} as trial {trial} ({settings_text(settings, results.params)})"
        for trial, until, settings in lineage(results)
    ]
    return (
        f"The best weights, trial {best['trial']}'s after epoch {best['best_epoch']}, were trained {', '.join(parts)}. "
        "What was found is this course of settings: its last values alone were not tried from the start."
    )


def lineage(results: Results) -> list[tuple[int, int, Mapping[str, Any]]]:
    """The stretches of training behind the best weights, in order: trial, last epoch, settings by short name."""
    best = results.best
    assert best is not None, "asked only where there is a best trial"
    copies = results.population.to_dict("records")
    trial, until = int(best["trial"]), int(best["best_epoch"])
    stretches: list[tuple[int, int, Mapping[str, Any]]] = []
    while True:
        earlier = [copy for copy in copies if copy["trial"] == trial and copy["epoch"] < until]
        settings = _settings(results, trial, until)
        stretches.insert(0, (trial, until, settings))
        if not earlier:
            return stretches
        trial, until = int(earlier[-1]["from"]), int(earlier[-1]["epoch"])


def _settings(results: Results, trial: int, epoch: int) -> Mapping[str, Any]:
    rows = results.rows
    row = rows[(rows["trial"] == trial) & (rows["epoch"] == epoch)].iloc[0]
    return {short: row[key if key in rows.columns else short] for key, short in results.params.items()}

"""`python -m raysweep.report DIR`: build the report of a sweep and print its answer. What it says is built elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raysweep.errors import RaysweepError, StoreError
from raysweep.report import answer as sentences
from raysweep.report import tables
from raysweep.report.build import write_report
from raysweep.store.directory import JOURNAL
from raysweep.store.results import Results, load

_TOP = 5
_TERMINAL_COLUMNS = ("best epoch", "parameters", "why")
"""Columns of the leaderboard that a terminal has no room for."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def newest_directory(storage: Path = Path("results")) -> Path:
    """The sweep's directory below `storage` whose journal was written last.

    Raises:
        StoreError: there is none.
    """
    journals = [*storage.glob(JOURNAL), *storage.glob(f"*/{JOURNAL}"), *storage.glob(f"*/*/{JOURNAL}")]
    if not journals:
        raise StoreError(
            f"no sweep below {storage.resolve()}: no {JOURNAL}; give the sweep's directory: python -m raysweep.report DIR"
        )
    return max(journals, key=lambda path: (path.stat().st_mtime_ns, str(path))).parent


@app.command()
def command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The sweep's directory; without it the newest below ./results.")
    ] = None,
) -> None:
    """Build a sweep's report (report.html, report.md, trials.csv, rows.parquet, PNGs) in its directory and print the answer."""
    try:
        results = load(directory if directory is not None else newest_directory())
        path = write_report(results)
    except RaysweepError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    print_summary(results, Console())
    # Not through rich: a path that is wrapped or coloured cannot be copied.
    typer.echo(str(shown_path(path, Path.cwd())))


def shown_path(path: Path, here: Path) -> Path:
    """A path relative to the working directory where it lies in it, else absolute."""
    try:
        return path.resolve().relative_to(here.resolve())
    except ValueError:
        return path.resolve()


def print_summary(results: Results, console: Console) -> None:
    """Print the answer, what to change next, the counts and the best trials."""
    console.print(Text(sentences.answer(results), style="bold"))
    for remark in sentences.remarks(results):
        console.print(Text(f"- {remark}"))
    console.print(Text(sentences.status(results)))
    if results.best is None:
        return
    board = tables.leaderboard(results, _TOP)
    kept = [i for i, name in enumerate(board.header) if name not in _TERMINAL_COLUMNS]
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for i in kept:
        table.add_column(Text(board.header[i]), justify="right" if i in board.numeric else "left", overflow="fold")
    for row in board.rows:
        table.add_row(*(Text(row[i]) for i in kept))
    console.print(table)
    if board.note:
        console.print(Text(board.note))


if __name__ == "__main__":
    app(prog_name="python -m raysweep.report")

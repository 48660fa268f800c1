"""What a finished sweep says on the terminal: its answer, its best trials, and the report's path as the last line."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raysweep.console import console, shown_path
from raysweep.report import answer as sentences
from raysweep.report import tables
from raysweep.report.build import write_report
from raysweep.report.seeds import seeds_table
from raysweep.store.results import Results, load

_TOP = 5
_TERMINAL_COLUMNS = ("best epoch", "parameters", "why")
"""Columns of the leaderboard that a terminal has no room for."""


def finish(directory: Path) -> None:
    """Write a directory's report, print its answer and, last, the report's path.

    Raises:
        StoreError: the directory holds no journal, or the report cannot be written.
    """
    results = load(directory)
    # The answer first: it needs no room on the disk.
    print_summary(results, console())
    path = write_report(results)
    # Not through rich: a path that is wrapped or coloured cannot be copied.
    print(shown_path(path))


def print_summary(results: Results, console: Console) -> None:
    """Print the answer, what to change next, the counts and the best trials; with several seeds the best configurations."""
    console.print(Text(sentences.answer(results), style="bold"))
    for remark in sentences.remarks(results):
        console.print(Text(f"- {remark}"))
    console.print(Text(sentences.status(results)))
    if results.best is None:
        return
    board = seeds_table(results, _TOP) or tables.leaderboard(results, _TOP)
    kept = [i for i, name in enumerate(board.header) if name not in _TERMINAL_COLUMNS]
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for i in kept:
        table.add_column(Text(board.header[i]), justify="right" if i in board.numeric else "left", overflow="fold")
    for row in board.rows:
        table.add_row(*(Text(row[i]) for i in kept))
    console.print(table)
    if board.note:
        console.print(Text(board.note))

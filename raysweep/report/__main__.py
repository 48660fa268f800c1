"""`python -m raysweep.report DIR`: build the report of a sweep and print its answer. What it says is built elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.console import commandline, run
from raysweep.errors import StoreError
from raysweep.report.summary import finish
from raysweep.store.directory import JOURNAL


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


@commandline
def command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The sweep's directory; without it the newest below ./results.")
    ] = None,
) -> int:
    """Build a sweep's report (report.html, report.md, trials.csv, rows.parquet, PNGs) in its directory and print the answer."""
    finish(directory if directory is not None else newest_directory())
    return 0


if __name__ == "__main__":
    run(command)

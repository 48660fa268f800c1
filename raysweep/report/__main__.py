"""`python -m raysweep.report DIR`: build the report of a sweep and print its answer. What it says is built elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.console import commandline, console, run
from raysweep.errors import StoreError
from raysweep.report.summary import finish
from raysweep.store.directory import JOURNAL
from raysweep.store.objects import is_uri
from raysweep.store.remote import open_place


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


def fetched(uri: str, working_directory: str = "results") -> Path:
    """The directory of a sweep that is kept at a URI, its journal brought up to date.

    Raises:
        StoreError: there is no sweep, or it cannot be read.
    """
    place_uri, _, options = uri.partition("?")
    parent, _, name = place_uri.rstrip("/").rpartition("/")
    place = open_place(f"{parent}?{options}" if options else parent, working_directory, console().print)
    place.fetch(name)
    if not (place.local / name / JOURNAL).exists():
        raise StoreError(f"no sweep at {place_uri}: give the sweep's own URI, that of `storage` with its name behind it")
    return place.local / name


@commandline
def command(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="The sweep's directory or URI (s3://bucket/path/NAME); else the newest in ./results."),
    ] = None,
) -> int:
    """Build a sweep's report (report.html, report.md, trials.csv, rows.parquet, PNGs) in its directory and print the answer."""
    if directory is None:
        finish(newest_directory())
    elif is_uri(directory):
        finish(fetched(directory))
    else:
        finish(Path(directory))
    return 0


if __name__ == "__main__":
    run(command)

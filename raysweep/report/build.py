"""From a sweep's directory to the report's files in it. The same journal gives the same bytes, whenever it is built."""

from __future__ import annotations

import io
from pathlib import Path

from raysweep.console import shown_path
from raysweep.errors import DiskError, StoreError
from raysweep.report.content import gather
from raysweep.report.page import html_page, markdown_page
from raysweep.store.directory import write_atomically
from raysweep.store.disk import disk_error
from raysweep.store.results import Results, load

REPORT = "report.html"


def build_report(directory: Path) -> Path:
    """Write trials.csv, rows.parquet, curves.png, map.png, images.png, report.md and report.html into the sweep's directory.

    A figure that cannot be drawn (no values, no images) is left out, and one from an earlier report is deleted.

    Returns:
        The path of report.html.

    Raises:
        StoreError: there is no readable journal, or a file cannot be written; each file is written whole or not at all.
    """
    return write_report(load(directory))


def write_report(results: Results) -> Path:
    """As `build_report`, from results that are already loaded."""
    content = gather(results)
    files: dict[str, bytes | None] = {"trials.csv": _csv(results), "rows.parquet": _parquet(results)}
    # A run without a sweep has no map; one left by anything else under that name goes too.
    files |= {"map.png": None, **{picture.file: picture.png for picture in content.pictures}}
    files["report.md"] = markdown_page(content).encode()
    files[REPORT] = html_page(content).encode()
    for name, written in files.items():
        path = results.directory.path / name
        try:
            if written is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, written)
        except OSError as error:
            raise _store_error(path, error) from None
    return results.directory.path / REPORT


def _csv(results: Results) -> bytes:
    return str(results.trials.to_csv(index=False, lineterminator="\n")).encode("utf-8", "replace")


def _parquet(results: Results) -> bytes:
    buffer = io.BytesIO()
    results.rows.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _store_error(path: Path, error: OSError) -> StoreError:
    again = f"python -m raysweep.report {shown_path(path.parent)} writes the report"
    if (failure := disk_error(error, path)) is not None:
        return DiskError(f"{failure}. Nothing else is lost, the journal is whole: {again}")
    why = error.strerror or str(error)
    return StoreError(f"cannot write {path}: {why}. Make it writable, or copy the directory and build the report there; {again}")

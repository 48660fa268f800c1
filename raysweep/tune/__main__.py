"""`python -m raysweep.tune [sweep.yaml] [--set key=value] [--storage DIR|URI]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.config import Sweep
from raysweep.console import commandline, console, run, shown_path
from raysweep.report.summary import finish


@commandline
def command(
    file: Annotated[
        Path | None, typer.Argument(help="The sweep as YAML; without it learning rate x depth on photographs.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: train.epochs=3, search.max_concurrent=1 (repeatable).")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="The directory that sweeps are kept in, or a URI (s3://bucket/path).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew in a new directory; nothing is deleted.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again, from checkpoints.")] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Show what would run and cost, after a few steps of each model size; writes STORAGE/NAME.plan.json."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what Ray has to say.")] = False,
) -> int:
    """Run a sweep, or go on with it, and write its report."""
    sweep = Sweep.from_file(file, sets)
    from raysweep.tune.engine import run_sweep
    from raysweep.tune.preview import preview_sweep
    from raysweep.tune.progress import Progress

    out = console()
    if plan:
        text, table = preview_sweep(
            sweep, storage=storage, fresh=fresh, retry_failed=retry_failed, say=lambda text: out.print(text, highlight=False)
        )
        out.print(table)
        out.print(text, highlight=False)
        return 0
    finished = run_sweep(
        sweep,
        storage=storage,
        fresh=fresh,
        retry_failed=retry_failed,
        verbose=verbose,
        say=lambda text: out.print(text, highlight=False),
        watcher=Progress(out),
    )
    if finished.status == "interrupted":
        where = shown_path(finished.directory.path)
        out.print(
            f"interrupted; what was trained is kept in {where}, checkpoints and journal included. The same command goes on.",
            highlight=False,
        )
    try:
        finish(finished.directory.path)
        finished.place.send_report(finished.directory)
    except KeyboardInterrupt:
        where = shown_path(finished.directory.path)
        out.print(f"no report was written; python -m raysweep.report {where} writes it", highlight=False)
        return 130
    return finished.exit_code


if __name__ == "__main__":
    run(command)

"""`raysweep train | tune | report | schema`: the same commands as the modules'."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from raysweep.config import Experiment, Sweep
from raysweep.report.__main__ import command as report
from raysweep.train.__main__ import command as train
from raysweep.tune.__main__ import command as tune

app = typer.Typer(
    name="raysweep",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train on every GPU you have, sweep learning rate and depth, and get a report you can trust.",
)
app.command("train")(train)
app.command("tune")(tune)
app.command("report")(report)


@app.command("schema")
def schema(
    experiment: Annotated[
        bool, typer.Option("--experiment", help="The schema of an experiment file, not of a sweep file.")
    ] = False,
) -> None:
    """Print the JSON schema of sweep files, for editors."""
    typer.echo(json.dumps((Experiment if experiment else Sweep).model_json_schema(), indent=2))


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()

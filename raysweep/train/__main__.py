"""`python -m raysweep.train [experiment.yaml] [--set key=value] [--local]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.console import commandline, console, run
from raysweep.experiment import Experiment
from raysweep.report.summary import finish
from raysweep.store.reasons import describe_end


@commandline
def command(
    file: Annotated[Path | None, typer.Argument(help="The experiment as YAML; without it everything is at its default.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: optim.lr=1e-3 (repeatable).")] = None,
    workers: Annotated[str | None, typer.Option(help="N, or MIN:MAX, as many as are free; sets scale.workers.")] = None,
    storage: Annotated[str, typer.Option(help="The directory that runs are kept in, or a URI (s3://bucket/path).")] = "results",
    working_directory: Annotated[str, typer.Option(help="The directory that runs work in, if --storage is a URI.")] = "results",
    name: Annotated[str, typer.Option(help="The name of the run's directory.")] = "train",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run of that name.")] = False,
    local: Annotated[bool, typer.Option("--local", help="No Ray: one worker in this process.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what Ray has to say.")] = False,
) -> int:
    """Train one model on all the workers you ask for."""
    if workers is not None:
        sets = [*(sets or []), f"scale.workers={workers}"]
    experiment = Experiment.from_file(file, sets)
    from raysweep.train import run as training

    epochs = experiment.train.epochs
    out = console()

    def show(row: dict[str, object]) -> None:
        out.print(
            f"epoch {row['epoch']}/{epochs}  train_loss {_number(row['train_loss'])}  val_loss {_number(row['val_loss'])}  "
            f"{_number(row['psnr'], 4)} dB  {_number(row['samples_per_second'], 4)} samples/s",
            highlight=False,
        )

    directory, outcome, place = training.run(
        experiment,
        storage=storage,
        working_directory=working_directory,
        name=name,
        local=local,
        resume=resume,
        verbose=verbose,
        say=lambda text: out.print(text, highlight=False),
        on_row=show,
    )
    why = describe_end({"status": outcome.status, "reason": outcome.reason})
    out.print(f"{outcome.status}: {why}" if why else outcome.status, highlight=False)
    finish(directory.path)
    place.send_report(directory)
    if outcome.status == "interrupted":
        out.print("the same command with --resume goes on with it", highlight=False)
        return 130
    return 1 if outcome.status == "diverged" or place.unsent else 0


def _number(value: object, digits: int = 5) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float | int) else "not finite"


if __name__ == "__main__":
    run(command)

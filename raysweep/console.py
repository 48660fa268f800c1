"""The command line's manners: errors without a traceback, exit codes, paths as the user would type them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import typer
from rich.console import Console

from raysweep.errors import DiskError, RaysweepError, TrialError

P = ParamSpec("P")


def console() -> Console:
    """Where lines for people go: standard output, whatever it is at the time."""
    return Console(soft_wrap=True)


def fail(text: str) -> None:
    """Print an error for people on standard error."""
    Console(stderr=True, soft_wrap=True).print(f"error: {text}", markup=False, highlight=False)


def commandline(function: Callable[P, int]) -> Callable[P, None]:
    """Make a command of a function that returns its exit code.

    A mistake of the user's exits with 2, training that failed with 1 (and its traceback), so does a full disk, Ctrl-C with 130.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = function(*args, **kwargs)
        except TrialError as error:
            if error.traceback_text:
                print(error.traceback_text.rstrip(), file=sys.stderr)
            fail(str(error))
            code = 1
        except DiskError as error:
            fail(str(error))
            code = 1
        except RaysweepError as error:
            fail(str(error))
            code = 2
        except KeyboardInterrupt:
            fail("interrupted")
            code = 130
        if code:
            raise typer.Exit(code)

    return wrapped


def shown_path(path: Path) -> str:
    """A path as the user would type it: relative where it lies below the current directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path.resolve())


def run(command: Callable[..., None]) -> None:
    """Run one command as a program; an unexpected error shows Python's plain traceback."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    app()

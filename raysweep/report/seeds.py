"""Configurations with several seeds: their means and spreads, and how the contest of the best ones went."""

from __future__ import annotations

from typing import Any

import pandas as pd

from raysweep.report.tables import NONE, Table, measured, missing, number, shortened
from raysweep.store.results import Results


def seeds_table(results: Results, limit: int = 50) -> Table | None:
    """The configurations, best first, and as its note the contest; None where each was trained with one seed."""
    if not results.has_seeds:
        return None
    board = results.configurations
    with_contest = bool(results.contest.contenders)
    params = list(results.params.values())
    header = ["", *params, f"mean {results.metric}", "standard deviation", "best", "seeds", "trials"]
    rows = []
    for place, (_, row) in enumerate(board.head(limit).iterrows(), start=1):
        bad = f", {row['bad']} diverged or failed" if row["bad"] else ""
        cells = [str(place), *(shortened(number(row[name]), 60) for name in params)]
        first = ", the first left out" if _without_first(results, row) else ""
        cells += [measured(row["mean"]), measured(row["std"]), measured(row["best"]), f"{row['seeds']}{first}{bad}"]
        cells.append(", ".join(str(trial) for trial in row["trials"]))
        rows.append((*cells, *([row["contest"] or NONE] if with_contest else [])))
    if with_contest:
        header.append("contest")
    note = contest_text(results)
    if len(board) > limit:
        note += f" ... {len(board) - limit} more configurations."
    numeric = frozenset({0, *range(1 + len(params), 4 + len(params))})
    return Table(tuple(header), tuple(rows), numeric, 0 if results.best is not None else None, note.strip())


def contest_text(results: Results) -> str:
    """How the contest went: who was dropped, when and by which p, and who is left; "" where there was none."""
    contest = results.contest
    if not contest.contenders:
        return ""
    texts = [
        f"Contest of the {len(contest.contenders)} best by one seed (trials {_listed(contest.contenders)}), each with the same "
        "further seeds, in means of which the first seed is left out:"
    ]
    for drop in contest.drops:
        why = "one of its seeds diverged or failed"
        if drop["p"] is not None:
            why = f"worse than trial {drop['leader']} (p {number(drop['p'], 2)} < {number(drop['level'], 2)}, paired t-test)"
        texts.append(f"after round {drop['round']} trial {drop['trial']} was dropped, {why};")
    left = contest.left
    if len(left) == 1:
        texts.append(f"trial {left[0]} is left.")
    elif not left:
        texts.append("none is left.")
    elif _is_over(results):
        texts.append(f"trials {_listed(left)} are not separated after {contest.seeds} seeds: their difference may be chance.")
    else:
        texts.append(
            f"trials {_listed(left)} are not separated yet: the sweep ended before they had their {contest.seeds} seeds."
        )
    return " ".join(texts)


def spread(results: Results) -> str:
    """What the answer says of the best configuration's spread: ` ± 0.0004 (mean and standard deviation of 3 seeds)`."""
    row = results.configurations.iloc[0]
    further, why = "", ""
    if _without_first(results, row):
        further, why = "further ", "; its first seed chose it for the contest, so it is left out"
    if missing(row["std"]):
        return f" (one {further}seed{why})"
    return f" ± {measured(row['std'])} (mean and standard deviation of {row['seeds']} {further}seeds{why})"


def _without_first(results: Results, configuration: pd.Series[Any]) -> bool:
    """Whether the mean leaves out a value that there is: a contender's first."""
    own = results.trials[results.trials["trial"].isin(configuration["trials"])]
    good = ~own["status"].isin(("diverged", "failed")) & own[results.metric].notna()
    return int(good.sum()) > int(configuration["seeds"])


def exceptions(results: Results) -> str:
    """Where a better mean does not make a better place, each a sentence after a space; "" where it always does."""
    board, text = results.configurations, ""
    if results.contest.contenders and (board["contest"] == "").any():
        text = (
            " Who took part in the contest is ranked first, by fresh seeds; the others' values are from before it, and lucky "
            "ones look too good."
        )
    if (board["bad"] > 0).any() and board["mean"].notna().any():
        text += " A configuration of which seeds diverged or failed shows the others' mean, and is ranked below those without."
    return text


def seed_remarks(results: Results) -> list[str]:
    """What the seeds say against the answer: a contest that was not decided, seeds that went wrong."""
    if not results.has_seeds or results.best is None:
        return []
    texts = []
    if len(results.contest.left) > 1:
        left = _listed(results.contest.left)
        why = f"after {results.contest.seeds} seeds" if _is_over(results) else "yet"
        texts.append(f"The contest is not decided: the configurations of trials {left} are not separated {why}.")
    first = results.configurations.iloc[0]
    if first["bad"]:
        texts.append(f"With {first['bad']} of its seeds the best configuration diverged or failed: it is not one to rely on.")
    return texts


def _is_over(results: Results) -> bool:
    """Whether no contender that is left can have a further seed."""
    board, contest = results.configurations, results.contest
    left = board[board["trial"].isin(contest.left)]
    return bool((left["seeds"] + left["bad"] >= contest.seeds - 1).all())


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(n) for n in numbers)

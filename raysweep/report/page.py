"""The report as one HTML file that needs nothing else, and as Markdown beside its PNGs. What it says is content.py.

Every text is escaped here and nowhere else.
"""

from __future__ import annotations

import base64
import html
import re

from raysweep.report.answer import trial_list
from raysweep.report.content import Content, Picture
from raysweep.report.tables import Failure, Table

# The browser is told to load nothing, so that no text of a trial can ever make it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1f2933; --soft: #5b6774; --line: #dfe3e8;
  --good: #1f6aa5; --bad: #b3123b; --mark: #fdf0e6; --code: #f1f3f5; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --card: #1c2229; --ink: #e4e7eb; --soft: #9aa5b1; --line: #323b46;
  --good: #6db3e8; --bad: #ff7a96; --mark: #3a2a1c; --code: #14181d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 0.6rem; }
section, .answer { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; margin: 0 0 1rem; }
.answer { border-left: 5px solid var(--good); font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere; }
.answer.bad { border-left-color: var(--bad); }
.answer ul { margin: 0.6rem 0 0; padding-left: 1.2rem; font-size: 0.95rem; font-weight: 400; }
.status, .caption, .note { color: var(--soft); font-size: 0.92rem; margin: 0.5rem 0 0; overflow-wrap: anywhere; }
.status { margin: 0 0 1rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
th.n, td.n { text-align: right; }
td.l { white-space: normal; min-width: 13rem; overflow-wrap: anywhere; }
tr.best td { background: var(--mark); font-weight: 600; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: 0.7rem; margin: 0.5rem 0 0;
  overflow-x: auto;
  font: 0.82rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
h3 { font-size: 0.95rem; margin: 0.8rem 0 0; overflow-wrap: anywhere; }
h3 span { color: var(--soft); font-weight: 400; }
"""

_LONG = 24
"""A cell with more characters than this may be broken into lines."""


def html_page(content: Content) -> str:
    """The whole report as one HTML document: images inlined, no script, nothing loaded from anywhere."""
    body = [f"<h1>{_e(content.title)}</h1>", _answer(content), f'<p class="status">{_e(content.status)}</p>']
    body += [_picture(picture) for picture in content.pictures]
    if content.seeds:
        body.append(_section("Configurations", _table(content.seeds)))
    body.append(_section("Trials", _table(content.leaderboard)))
    if content.failures:
        body.append(_section(_failed_heading(content), "".join(_failure(f) for f in content.failures)))
    if content.population.rows:
        body.append(_section("Population", f"<p>{_e(content.population_text)}</p>{_table(content.population)}"))
    if content.stopping:
        body.append(_section("Early stopping", _table(content.stopping)))
    if content.workers.rows:
        body.append(_section("What happened to the workers", _table(content.workers)))
    if content.facts.rows:
        body.append(_section("Data", _table(content.facts, header=False)))
    body.append(_section("Settings", f"<pre>{_e(content.settings)}</pre>"))
    body.append(_section("Open this report again", f"<pre>{_e(content.command)}</pre>"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_e(content.title)}: raysweep report</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _e(text: str) -> str:
    # Control characters (a progress bar's colours in a traceback) are no part of a document.
    return html.escape(re.sub(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]", "", text))


def _section(heading: str, body: str) -> str:
    return f"<section>\n<h2>{_e(heading)}</h2>\n{body}\n</section>"


def _answer(content: Content) -> str:
    notes = "".join(f"<li>{_e(remark)}</li>" for remark in content.remarks)
    shade = "answer" if content.good else "answer bad"
    return f'<div class="{shade}">{_e(content.answer)}{f"<ul>{notes}</ul>" if notes else ""}</div>'


def _picture(picture: Picture) -> str:
    caption = f'<p class="caption">{_e(picture.caption)}</p>'
    if picture.png is None:
        return _section(picture.heading, caption)
    source = "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
    return _section(picture.heading, f'<img alt="{_e(picture.heading)}" src="{source}">{caption}')


def _table(table: Table, header: bool = True) -> str:
    def cell(tag: str, place: int, text: str) -> str:
        kind = "n" if place in table.numeric else ("l" if len(text) > _LONG else "")
        return f"<{tag}{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{_e(text)}</{tag}>"

    note = f'<p class="note">{_e(table.note)}</p>' if table.note else ""
    if not table.rows:
        return note
    head = f"<thead><tr>{''.join(cell('th', i, t) for i, t in enumerate(table.header))}</tr></thead>" if header else ""
    lines = []
    for number, row in enumerate(table.rows):
        mark = ' class="best"' if number == table.marked else ""
        lines.append(f"<tr{mark}>{''.join(cell('td', i, t) for i, t in enumerate(row))}</tr>")
    return f'<div class="wide"><table>{head}<tbody>\n' + "\n".join(lines) + f"\n</tbody></table></div>{note}"


def _failed_heading(content: Content) -> str:
    statuses = {failure.status for failure in content.failures}
    return f"{' and '.join(sorted(statuses)).capitalize()} trials"


def _failure(failure: Failure) -> str:
    trace = f"<pre>{_e(failure.traceback)}</pre>" if failure.traceback else ""
    return f"<h3>{_e(failure.error)} <span>{_e(failure.status)}: {_e(trial_list(failure.trials))}</span></h3>{trace}"


def markdown_page(content: Content) -> str:
    """The same report as Markdown; the PNGs are expected beside it."""
    parts = [f"# {_m(content.title)}", f"**{_m(content.answer)}**"]
    if content.remarks:
        parts.append("\n".join(f"- {_m(remark)}" for remark in content.remarks))
    parts.append(_m(content.status))
    for picture in content.pictures:
        parts.append(f"## {picture.heading}")
        if picture.png is not None:
            parts.append(f"![{picture.heading}]({picture.file})")
        parts.append(_m(picture.caption))
    if content.seeds:
        parts += ["## Configurations", markdown_table(content.seeds)]
    parts += ["## Trials", markdown_table(content.leaderboard)]
    if content.failures:
        parts.append(f"## {_failed_heading(content)}")
    for failure in content.failures:
        parts.append(f"**{_m(failure.error)}** ({failure.status}: {trial_list(failure.trials)})")
        if failure.traceback:
            parts.append(_fenced(failure.traceback))
    if content.population.rows:
        parts += ["## Population", _m(content.population_text), markdown_table(content.population)]
    if content.stopping:
        parts += ["## Early stopping", markdown_table(content.stopping)]
    if content.workers.rows:
        parts += ["## What happened to the workers", markdown_table(content.workers)]
    if content.facts.rows:
        parts += ["## Data", markdown_table(content.facts)]
    parts += ["## Settings", _fenced(content.settings, "yaml"), "## Open this report again", _fenced(content.command, "sh")]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table of GitHub's Markdown; the marked row is bold. Of one without rows only the note is left."""
    if not table.rows:
        return _m(table.note)
    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.header))]
    lines = [[_m(text) for text in table.header], rule]
    for number, row in enumerate(table.rows):
        cells = [_m(text) for text in row]
        lines.append([f"**{text}**" if text else "" for text in cells] if number == table.marked else cells)
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{_m(table.note)}" if table.note else text


def _m(text: str) -> str:
    one_line = " ".join(_e(text).replace("&#x27;", "'").replace("&quot;", '"').split(" "))
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line.replace("\n", " "))


def _fenced(text: str, language: str = "") -> str:
    # Longer than any fence inside the text.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"

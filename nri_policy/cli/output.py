"""Output: what a sub-command prints on stdout, as a document for programs or drawn for people.

Colour follows the terminal, NO_COLOR and FORCE_COLOR, the width the terminal or COLUMNS: rich's
rules.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

import click
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from nri_policy.foundation.wording import printable
from nri_policy.report import plain

_PIPED_WIDTH = 120  # columns
_HANGING = 2  # columns by which the further lines of a paragraph are indented
# ASCII substitutes of drawing characters, for terminals without Unicode
_ASCII = str.maketrans("┌┐└┘╭╮╰╯├─│·…", "+++++++++-|.~")


class Canvas(Console):
    """Shows text, whatever is in it: names come from others, and must not command a terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable, of text that is fit to be shown."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
                continue
            # one character for each, for the widths are settled
            text = printable(segment.text, instead="\N{REPLACEMENT CHARACTER}")
            if not self.encoding.startswith("utf"):
                text = text.translate(_ASCII)
            yield Segment(text, segment.style)


def program_name() -> str:
    """Return how the program was called, or its name where that is enough."""
    name = Path(sys.argv[0]).name
    return name if shutil.which(name) == sys.argv[0] else sys.argv[0]


def print_document(document: object, form: str) -> None:
    """Print a document as `json` or `yaml`."""
    values = plain(document)
    if form == "json":
        click.echo(json.dumps(values, indent=2))
    else:
        click.echo(yaml.safe_dump(values, sort_keys=False, width=100), nl=False)


def print_page(text: str) -> None:
    """Print an SVG or HTML file, which is UTF-8 whatever the terminal takes."""
    click.echo(text.encode(), nl=False)


def print_drawing(*drawings: RenderableType) -> None:
    """Print *drawings* one below the other."""
    if isinstance(sys.stdout, TextIOWrapper):
        # a terminal that cannot show a character gets a question mark rather than a traceback
        sys.stdout.reconfigure(errors="replace")
    # output to files and pipes has a fixed width
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _PIPED_WIDTH if piped else None
    console = Canvas(highlight=False, markup=False, emoji=False, width=width)
    for drawing in drawings:
        shown = _wrap(drawing, console) if isinstance(drawing, Text) else drawing
        for line in console.render_lines(shown, pad=False):
            console.print(Segments([*_trim(line), Segment.line()]))


def _wrap(text: Text, console: Console) -> Text:
    """Return *text* in lines that fit, those after the first of each line indented further."""
    lines = list[Text]()
    for line in text.split("\n", allow_blank=True):
        first, *more = line.wrap(console, console.width) or [line]
        lines.append(first)
        if more:
            indent = len(line.plain) - len(line.plain.lstrip()) + _HANGING
            rest = line[len(first.plain.rstrip()) :]
            rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
            for each in rest.wrap(console, max(1, console.width - indent)):
                lines.append(Text(" " * indent) + each)
    return Text("\n").join(lines)


def _trim(line: list[Segment]) -> list[Segment]:
    """Return a line without the blanks at its end, which tables fill their width with."""
    while line and not line[-1].text.rstrip() and not (line[-1].style and line[-1].style.bgcolor):
        line = line[:-1]
    if line and not (line[-1].style and line[-1].style.bgcolor):
        line = [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())]
    return line


def local_time(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, as all commands show it to people."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(" ", "seconds")


def shown_time(moment: str) -> str:
    """Return a moment of a document as all commands show it to people."""
    return local_time(datetime.fromisoformat(moment).timestamp())

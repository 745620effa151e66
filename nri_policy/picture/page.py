"""The HTML renderer: a report in one file, with pictures, tables and nothing from outside.

The page is well-formed XML too. Its security policy allows no request to anywhere, and no script
but the one that plays a series of pictures; without it they are a list.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.scene import Scene, headline
from nri_policy.picture.svg import HEADINGS, Strip, cells, figure
from nri_policy.picture.svg_parts import swatch

_LONGEST = 24  # characters of a word without a line break
_LONGEST_LIST = 16  # characters of a list of CPUs without a break: they fit in `.cpus`
_LONGEST_PROBLEM = 160
_NARROW = 340  # pixels: the picture for a phone
_LIST = re.compile(r"[\d,:-]+")
PLAY = Verbatim("script", "play.js")


def page(title: str, *sections: Element, script: Verbatim | None = None) -> str:
    """Return a page; *script* is the only one that may run in it."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script is not None:
        digest = b64encode(sha256(f"\n{script.text}".encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    head = Element(
        "head",
        Element("meta", charset="utf-8"),
        Element("meta", http_equiv="Content-Security-Policy", content=policy),
        Element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Element("title", title),
        Verbatim("style", "picture.css"),
        Verbatim("style", "page.css"),
    )
    scripts = [] if script is None else [script]
    body = Element("body", Element("h1", title), *sections, *scripts)
    return f"<!DOCTYPE html>\n{Element('html', head, body, lang='en')}\n"


def played_page(title: str, strips: Sequence[Strip]) -> str:
    """Return a page that shows one strip at a time where scripts run, else all of them."""
    content = [_step(strip, number) for number, strip in enumerate(strips, start=1)]
    return page(title, player(len(strips)), *content, script=PLAY)


def player(count: int) -> Element:
    """Return what shows one of *count* steps at a time, where scripts run."""
    return Element(
        "div",
        Element("button", "▶ Play", type="button"),
        Element("input", type="range", min=1, max=count, value=1, aria_label="step"),
        Element("output", ""),
        class_="player",
        hidden="",
    )


def step(heading: str, number: int, *content: Element) -> Element:
    """Return a step, which the player shows or hides."""
    return Element("section", Element("h2", heading), *content, id_=f"step-{number}", class_="step")


def section(heading: str, *content: Element) -> Element:
    """Return a part of a page."""
    return Element("section", Element("h2", heading), *content)


def _step(strip: Strip, number: int) -> Element:
    content = [problem(each) for each in strip.problems]
    if strip.scene is not None:
        content += [*picture_parts(strip.scene, f"s{number}-"), containers(strip.scene)]
    return step(strip.heading, number, *content)


def picture_parts(scene: Scene, prefix: str = "") -> list[Element]:
    """Return the picture of a scene; ids of elements begin with *prefix*."""
    return [
        _paragraph(headline(scene.machine), "headline"),
        Element(
            "div",
            figure(scene, prefix, class_="broad"),
            figure(scene, f"{prefix}narrow-", _NARROW, "narrow"),
            class_="wide",
        ),
    ]


def containers(scene: Scene) -> Element:
    """Return the table of the containers of a scene, those that were refused too."""
    if not scene.occupants and not scene.refused:
        return _paragraph("no containers", "headline")
    heads = ["", *HEADINGS]
    heads += ["changed"] if scene.changes else []
    rows = []
    for each in scene.occupants:
        mark = Element("td")
        if each.owner:
            look = scene.marks[each.owner]
            square = Element("g", *swatch(look.letter), class_=f"cpu own k{look.colour}")
            mark = Element("td", Element("svg", square, width=18, height=16))
        texts = cells(each)[: len(heads) - 1]
        rows.append(
            Element(
                "tr",
                mark,
                *map(_cell, texts, heads[1:]),
                class_="changed" if each.change else None,
                data_container=each.name,
            )
        )
    for name, reason in scene.refused.items():
        rows.append(
            Element(
                "tr",
                Element("td"),
                Element("td", name.removeprefix("default/")),
                Element("td", f"refused: {reason}", colspan=len(heads) - 2),
                class_="problem",
                data_container=name,
            )
        )
    return frame(heads, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Element:
    """Return a table of texts."""
    return frame(heads, [Element("tr", *map(_cell, row, heads)) for row in rows])


def render_list(texts: Iterable[str]) -> Element:
    """Return a list of texts."""
    return Element("ul", *(Element("li", text) for text in texts))


def heat_map(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Element:
    """Return a square table of numbers, the larger ones on a deeper ground."""
    every = [value for row in matrix for value in row]
    least, most = min(every), max(every)
    rows = [
        Element(
            "tr",
            Element("th", name),
            *(
                Element(
                    "td",
                    str(value),
                    class_=f"heat{round(9 * (value - least) / max(1, most - least))}",
                )
                for value in row
            ),
        )
        for name, row in zip(names, matrix, strict=True)
    ]
    return frame(["", *names], rows, class_="heat")


def frame(heads: Sequence[str], rows: Sequence[Element], class_: str | None = None) -> Element:
    """Return a table of rows."""
    head = Element("thead", Element("tr", *(Element("th", name) for name in heads)))
    return Element(
        "div", Element("table", head, Element("tbody", *rows), class_=class_), class_="wide"
    )


def _cell(text: str, head: str) -> Element:
    """Return a cell: a long list of CPUs may break after its commas, a long name anywhere."""
    if "," in text and len(text) > _LONGEST_LIST and _LIST.fullmatch(text):
        first, *rest = text.split(",")
        parts = [part for each in rest for part in (",", Element("wbr"), each)]
        return Element("td", first, *parts, class_="cpus", data_head=head or None)
    unbroken = len(text) > _LONGEST and " " not in text
    return Element("td", text, class_="list" if unbroken else None, data_head=head or None)


def problem(text: str) -> Element:
    """Return a problem; a long one can be opened to read all of it."""
    if len(text) <= _LONGEST_PROBLEM:
        return _paragraph(text, "problem")
    summary = Element("summary", f"{text[:_LONGEST_PROBLEM]}…")
    return Element("details", summary, _paragraph(text, "problem"), class_="problem")


def _paragraph(text: str, class_: str) -> Element:
    return Element("p", text, class_=class_)

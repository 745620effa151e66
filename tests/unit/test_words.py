"""Words that the project does not use for readers, and those that it uses instead.

The glossary has the terms; a sentence that needs another word is written anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest

from nri_policy.cli import main
from nri_policy.cli.kubectl import main as plugin
from nri_policy.cli.node.holdings import HEADINGS
from nri_policy.engine.choice.criteria import CRITERIA
from nri_policy.report.explanation_lines import _HOW
from nri_policy.workload.annotation_table import ANNOTATIONS

PROJECT = Path(__file__).parents[2]
PAGES = [
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]
INSTEAD = {
    r"wish(es|ed)?": "request, preference",
    r"own CPUs|CPUs of (its|their) own": "exclusive CPUs",
    r"suits?": "is best for, fits",
    r"lives": "exists, lasts, histories",
    r"fares|dearer|mighty|heirs": "plain words",
    r"to be had": "available",
    r"first of equals": "the lowest number wins",
    r"hold all|most in one": "that fit the whole group",
    r"chapters?|tidings|glimpse": "plain words",
    r"dedicated CPUs|pinned CPUs": "exclusive CPUs",
}
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield the help texts of a command and of its subcommands, each with the command's path."""
    context = click.Context(command, info_name=path)
    yield path, command.help or ""
    for parameter in command.params:
        yield path, getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, f"{path} {name}")


def literals() -> Iterator[tuple[str, str]]:
    """Yield the texts in the program's modules but for docstrings: what it prints, and more."""
    for path in sorted((PROJECT / "nri_policy").rglob("*.py")):
        tree = ast.parse(path.read_text())
        statements = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in ast.walk(tree):
            if not isinstance(each, ast.Constant) or id(each) in statements:
                continue
            if isinstance(each.value, str) and " " in each.value:
                yield f"{path.name}:{each.lineno}", each.value


@cache
def texts() -> list[tuple[str, str]]:
    """Return all that readers see, with where it stands."""
    return [*_texts()]


def _texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield page.name, _CODE.sub("", page.read_text())
    for picture in sorted((PROJECT / "docs").rglob("*.svg")):
        yield picture.name, " ".join(ET.parse(picture).getroot().itertext())
    yield from helps(main, "nri-policy")
    yield from helps(plugin, "kubectl nri-policy")
    for criterion in CRITERIA:
        for text in (criterion.heading, criterion.doc, criterion.reason, criterion.lack):
            yield f"criterion {criterion.name}", text
    for row in ANNOTATIONS:
        yield "annotations", str(row)
    yield "headings", " ".join(HEADINGS)
    yield from literals()
    yield "how a container was placed", " ".join(_HOW.values())


@pytest.mark.parametrize(("pattern", "instead"), INSTEAD.items())
def test_a_word_that_has_a_plainer_one_is_not_used(pattern: str, instead: str) -> None:
    word = re.compile(rf"\b({pattern})\b", re.IGNORECASE)
    found = [
        f"{place}: …{text[max(0, match.start() - 40) : match.end() + 30]!r}"
        for place, text in texts()
        for match in word.finditer(text)
    ]
    assert not found, f"write {instead}"


def test_the_terms_of_the_glossary_are_in_use() -> None:
    """A term that no other page uses is not one of ours."""
    rows = re.findall(
        r"^\| ([^|`(]+?) (?:\([^|]*\) )?\|",
        (PROJECT / "docs/glossary.md").read_text(),
        re.MULTILINE,
    )
    pages = [page.read_text() for page in PAGES if page.name != "glossary.md"]
    others = " ".join([*pages, *(text for _, text in texts())]).lower()
    terms = [term for row in rows if row != "word" for term in row.split(", ")]
    assert len(terms) > 20
    assert [term for term in terms if term.lower() not in others] == []


LONGEST = 40  # words


def test_no_sentence_for_readers_has_more_than_forty_words() -> None:
    """A span of code, whatever is in it, is a word."""
    pages = [page for page in PAGES if page.parent.name != "design"]  # rules that the code cites
    read = [(page.name, each) for page in pages for each in parts(page.read_text())]
    read += [
        (path, each)
        for path, text in [*helps(main, ""), *helps(plugin, "")]
        for each in parts(text)
    ]
    long = [
        f"{place}: {len(words)} words: {sentence[:90]}…"
        for place, part in read
        for sentence in re.split(r"(?<=[.!?])(?:\)|\*\*)*\s+(?=[\[(*A-Z0-9\"])", part)
        if len(words := re.findall(r"\S*\w\S*", sentence)) > LONGEST
    ]
    assert not long


def parts(text: str) -> Iterator[str]:
    """Yield paragraphs, items of lists and cells of tables, without their code and links."""
    plain = re.sub(r"<!--.*?-->", "", _CODE.sub("X", text), flags=re.DOTALL)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    for line in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.)\s?)", plain):
        yield from (each.strip() for each in line.split("|"))

"""The published schema, and that the types read what the program prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nri_policy.cli import main
from nri_policy.report import decode, plain
from tests.unit.report.commands import GOLDEN
from tests.unit.report.test_golden import command
from tools.report_schema import DOCUMENTS, ROOT, SCHEMA, generate


def test_the_published_schema_is_that_of_the_types(tmp_path: Path) -> None:
    generate(tmp_path)
    again = "tools/report_schema.py writes it anew"
    assert (ROOT / SCHEMA).read_text() == (tmp_path / SCHEMA).read_text(), again


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_a_printed_document_is_read_into_its_type_and_printed_again(path: Path) -> None:
    text = path.read_text()
    assert plain(decode(text, DOCUMENTS[command(path.stem)])) == json.loads(text)


def test_every_command_has_a_golden_document() -> None:
    found = {command(path.stem) for path in GOLDEN.iterdir()}
    assert found == DOCUMENTS.keys() - {"doctor"}, "what doctor finds is another host's"


def printing(group: click.Group, *above: str) -> Iterator[str]:
    """Yield the names of the commands that take `-o json`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from printing(command, *above, name)
        for option in command.params:
            if "-o" in option.opts and isinstance(option.type, click.Choice):
                assert "json" in option.type.choices
                yield " ".join((*above, name))


def test_the_schema_has_every_command_that_prints_json() -> None:
    assert isinstance(main, click.Group)
    assert DOCUMENTS.keys() == {*printing(main), "journal"}


def test_a_document_of_another_kind_is_an_error_that_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"records is missing"):
        decode("{}", DOCUMENTS["journal"])
    text = (GOLDEN / "small-status.json").read_text()
    text = text.replace('"online_cpus": "', '"online_cpus": "x')
    with pytest.raises(ValueError, match=r"^online_cpus: bad CPU list"):
        decode(text, DOCUMENTS["status"])

"""One message is one line of the log, whoever wrote the text in it."""

from __future__ import annotations

import io
import logging

from nri_policy.logs import MAX_LENGTH, LineFormatter


def logged(*args: object, **named: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tests.unit.test_logs")
    logger.addHandler(handler)
    logger.warning(*args, **named)  # type: ignore[arg-type]
    logger.removeHandler(handler)
    return stream.getvalue()


def test_a_name_cannot_forge_a_line_or_command_a_terminal() -> None:
    name = "pod\nWARNING event=forged\r\x1b[2J"
    said = logged("event=placed container=%s", name)
    assert said == "WARNING event=placed container=pod\\nWARNING event=forged\\r\\x1b[2J\n"


def test_a_message_without_end_is_cut() -> None:
    said = logged("%s", "x" * 1_000_000)
    assert said == f"WARNING {'x' * MAX_LENGTH}… ({1_000_000 - MAX_LENGTH} characters more)\n"


def test_a_traceback_keeps_its_lines() -> None:
    try:
        int("why")
    except ValueError:
        lines = logged("it failed", exc_info=True).splitlines()
    assert lines[0] == "WARNING it failed"
    assert lines[-1].startswith("ValueError: ")
    assert len(lines) > 3

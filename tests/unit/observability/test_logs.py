from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.observability.logs import (
    JSON,
    Debug,
    Form,
    Handler,
    Text,
    Warnings,
    set_up,
    write_repeats,
)
from nri_policy.observability.repeats import MOST, RepeatFilter
from tests.support.log_calls import log_calls

HOSTILE = "default/web\nlevel=info event=placed\x1b[2J\u2028\x85x=1"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(
    message: str,
    fields: dict[str, Any] | None = None,
    *,
    name: str = "nri_policy.x",
    error: BaseException | None = None,
) -> logging.LogRecord:
    log = logging.getLogger(name)
    made = log.makeRecord(name, logging.WARNING, "file", 1, message, (), None, extra=fields)
    if error is not None:
        made.exc_info = type(error), error, None
    made.created = 0.5
    return made


def test_a_line_has_time_level_logger_and_the_fields() -> None:
    line = Text(journal=False).format(record("started", {"cpus": CPUSet([0, 1, 2]), "pools": 7}))
    expected = "time=1970-01-01T00:00:00.500+00:00 level=warning logger=nri_policy.x"
    assert line == f"{expected} event=started cpus=0-2 pools=7"


def test_a_line_for_the_journal_begins_with_its_priority() -> None:
    levels = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
    for name, priority in levels.items():
        made = record("x")
        made.levelno, made.levelname = getattr(logging, name.upper()), name.upper()
        line = Text(journal=True).format(made)
        assert line == f"<{priority}>level={name} logger=nri_policy.x event=x"


def test_a_command_without_a_log_shows_a_warning_with_its_fields() -> None:
    assert Warnings().format(record("late", {"method": "Create"})) == "event=late method=Create"
    warning = {"container": "default/web/main", "text": "it has room because a moved\n=1"}
    line = Warnings().format(record("warning", warning))
    assert line == r"warning: default/web/main: it has room because a moved\n=1"


def test_outside_text_is_quoted_and_cannot_end_the_line_or_begin_a_field() -> None:
    line = Text(journal=False).format(record("refused", {"container": HOSTILE, "more": 1}))
    quoted = r"'default/web\nlevel=info event=placed\x1b[2J\u2028\x85x=1'"
    assert line.endswith(f"event=refused container={quoted} more=1")
    assert line.isprintable()


@pytest.mark.parametrize(
    "value", ["a b", "a=b", "it's", 'say "x"', "back\\slash", "tab\t", "\u202e"]
)
def test_what_is_no_single_word_is_quoted(value: str) -> None:
    line = Text(journal=False).format(record("x", {"path": Path(value)}))
    assert line.endswith(f"path={str(Path(value))!r}")


def test_a_message_that_was_formatted_with_outside_text_cannot_end_the_line_either() -> None:
    for name in ("nri_policy.x", "asyncio"):
        line = Text(journal=False).format(record(f"x {HOSTILE}", name=name))
        assert line.isprintable()


def test_a_traceback_is_a_value_of_its_line() -> None:
    line = Text(journal=False).format(record("failed", error=ValueError("a\nb")))
    assert line.endswith(r"event=failed traceback='ValueError: a\nb\n'")


def test_a_value_without_bound_is_cut() -> None:
    for name in ("nri_policy.x", "asyncio"):
        line = Text(journal=False).format(record("x" * 1_000_000, name=name))
        assert len(line) < 9000
        assert "characters more)" in line


def test_json_has_the_same_as_fields_and_numbers_as_numbers() -> None:
    fields = {"container": HOSTILE, "reason": "no 'room' a=1", "cpus": "", "tries": 3, "done": True}
    assert json.loads(JSON().format(record("refused", fields))) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "warning",
        "logger": "nri_policy.x",
        "event": "refused",
        **fields,
    }


def test_nothing_is_read_out_of_a_text() -> None:
    shown = json.loads(JSON().format(record("x level=debug", error=ValueError("a"))))
    assert (shown["event"], shown["level"]) == ("x level=debug", "warning")
    assert shown["traceback"] == "ValueError: a\n"
    other = json.loads(JSON().format(record("Task was destroyed\nfoo=1", name="asyncio")))
    assert (other["text"], "foo" in other) == ("Task was destroyed\nfoo=1", False)


def test_lines_are_fields_and_nobody_builds_their_text() -> None:
    """The event is a name, all else is in `extra`, under names that the library does not use."""
    standard = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    calls = [*log_calls()]
    assert len(calls) > 80
    for path, call in calls:
        where = f"{path.name}:{call.lineno}"
        (event,) = call.args
        if isinstance(event, ast.Constant):
            assert re.fullmatch(r"[a-z-]+", str(event.value)), where
        else:
            assert isinstance(event, ast.Name), where
        assert {each.arg for each in call.keywords} <= {"extra", "exc_info"}, where
        for extra in (each.value for each in call.keywords if each.arg == "extra"):
            if isinstance(extra, ast.Dict):
                keys = {ast.literal_eval(key) for key in extra.keys if key is not None}
                assert not keys & (standard | {"event", "level", "logger", "time"}), where


def test_the_journal_is_told_by_the_file_that_it_made(
    root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stderr").open("w+") as stream:
        status = os.fstat(stream.fileno())
        for file, begins in ((status.st_ino, "<6>level"), (status.st_ino + 1, "time=")):
            monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{file}")
            set_up(Form.TEXT, stream)
            root.info("x")
            stream.seek(0)
            assert stream.read().splitlines()[-1].startswith(begins)


def test_a_file_that_is_none_is_no_journal(root: logging.Logger) -> None:
    stream = io.StringIO()
    set_up(Form.JSON, stream)
    root.info("x")
    assert json.loads(stream.getvalue())["level"] == "info"


class Lines:
    """A logger whose lines a test reads, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        self.handler = Handler(self._stream, RepeatFilter(Clock(now=lambda: self.now)))
        self.handler.setFormatter(logging.Formatter("%(message)s"))
        self.log = logging.getLogger("nri_policy.test")
        self.log.handlers[:] = [self.handler]
        self.log.propagate = False
        self.log.setLevel(logging.INFO)

    def written(self) -> list[str]:
        lines = self._stream.getvalue().splitlines()
        self._stream.seek(0)
        self._stream.truncate()
        return lines


def test_a_repeated_warning_is_told_at_once_and_then_once_a_minute_with_its_number() -> None:
    lines = Lines()
    lines.handler.setFormatter(Text(journal=True))
    for _ in range(1000):
        lines.log.warning("not-connected", extra={"path": "/a"})
        lines.log.warning("not-connected", extra={"path": "/b"})
    prefix = "<4>level=warning logger=nri_policy.test event=not-connected path"
    assert lines.written() == [f"{prefix}=/a", f"{prefix}=/b"]
    lines.now = 59
    lines.handler.write_repeats()
    assert lines.written() == []
    lines.now = 60
    lines.handler.write_repeats()
    assert lines.written() == [f"{prefix}=/a repeated=999", f"{prefix}=/b repeated=999"]
    lines.log.warning("not-connected", extra={"path": "/a"})
    assert lines.written() == []
    lines.now = 120
    lines.handler.write_repeats()
    assert lines.written() == [f"{prefix}=/a repeated=1"]
    lines.now = 180
    lines.handler.write_repeats()
    lines.log.warning("not-connected", extra={"path": "/a"})
    assert lines.written() == [f"{prefix}=/a"], "it was over: this one is the first of its kind"


def test_what_is_no_warning_is_never_held_back() -> None:
    lines = Lines()
    for _ in range(3):
        lines.log.info("x")
    assert lines.written() == ["x"] * 3


def test_different_warnings_without_bound_are_told_and_not_kept() -> None:
    lines = Lines()
    for number in range(3 * MOST):
        lines.log.warning("x", extra={"number": number})
    assert len(lines.written()) == 3 * MOST
    assert len(lines.handler._repeats._seen) == MOST


def test_a_message_that_does_not_fit_its_values_stops_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = Lines()
    lines.log.warning("number %d", "none")
    assert "Logging error" in capsys.readouterr().err


def test_the_root_tells_repeats(root: logging.Logger) -> None:
    lines = Lines()
    root.handlers[:] = [lines.handler, logging.NullHandler()]
    for _ in range(2):
        root.warning("x")
    lines.now = 60
    write_repeats()
    assert lines.written() == ["x", "x"]


def test_loggers_are_switched_on_and_off_again(root: logging.Logger) -> None:
    root.setLevel(logging.INFO)
    debug, one, other = (
        Debug(),
        logging.getLogger("nri_policy.one"),
        logging.getLogger("nri_policy.other"),
    )
    debug.switch(["nri_policy.one"])
    assert (one.isEnabledFor(logging.DEBUG), other.isEnabledFor(logging.DEBUG)) == (True, False)
    debug.switch(["*", "nri_policy.one"])
    assert (one.isEnabledFor(logging.DEBUG), other.isEnabledFor(logging.DEBUG)) == (True, True)
    debug.switch([])
    assert (one.isEnabledFor(logging.DEBUG), other.isEnabledFor(logging.DEBUG)) == (False, False)
    assert (root.level, one.level) == (logging.INFO, logging.NOTSET)

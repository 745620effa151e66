"""Logs: writes one line per record to stderr, as key=value or JSON.

Owns the form of a line, and that outside text cannot forge one: a value that is not a single word
is quoted, and anything that could end a line is escaped. The message of a record is the event's
name, and its fields are in `extra`: `log.warning("late", extra={"method": name})`.

The loggers are those of the standard library, not structlog's: the short commands import the
modules that log, and structlog with its imports (asyncio, rich) would cost each command 0.1 s. Its
key=value renderer does not escape line ends of a terminal or the journal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from nri_policy.foundation.wording import one_line
from nri_policy.observability.repeats import RepeatFilter, fields_of

OURS = "nri_policy"
LONGEST = 8192  # characters of a value

# the journal's priority of a line
_PRIORITIES = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}
_WORD = re.compile(r"[^\s'\"=\\]*")


class Form(StrEnum):
    """The form of a line."""

    TEXT = "text"
    JSON = "json"


def set_up(form: Form, stream: TextIO = sys.stderr) -> None:
    """Log to *stream* from now on, from INFO up."""
    formatter = Text(journal=_is_journal(stream)) if form is Form.TEXT else JSON()
    handler = Handler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def show_warnings() -> None:
    """Write warnings with their fields to stderr, in a command without a log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Warnings())


class Handler(logging.StreamHandler[TextIO]):
    """Writes records, but repeated warnings only now and then."""

    def __init__(self, stream: TextIO, repeats: RepeatFilter | None = None) -> None:
        super().__init__(stream)
        self._repeats = repeats or RepeatFilter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it repeats a recent one."""
        try:
            new = record.levelno < logging.WARNING or self._repeats.first(record)
        except Exception:  # noqa: BLE001 - a malformed message raises anything; as logging does
            self.handleError(record)
        else:
            if new:
                super().emit(record)

    def write_repeats(self) -> None:
        """Write the number of repetitions of warnings, where that is due."""
        self.acquire()
        try:
            for record in self._repeats.due():
                super().emit(record)
        finally:
            self.release()


def write_repeats() -> None:
    """Have the root's handlers write the repetitions of warnings; to be called regularly."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Handler):
            handler.write_repeats()


class Debug:
    """The loggers that log at DEBUG."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}  # earlier levels of these loggers

    def switch(self, names: Iterable[str]) -> None:
        """Set the loggers *names* (`*` for all) to DEBUG, and the previous ones back."""
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        wanted = dict.fromkeys("" if name == "*" else name for name in names)
        self._before = {name: logging.getLogger(name).level for name in wanted}
        for name in wanted:
            logging.getLogger(name).setLevel(logging.DEBUG)


class Text(logging.Formatter):
    """A line of key=value, with its priority for the *journal*, else with the time."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        before = f"<{_priority(record)}>" if self._journal else f"time={_time(record)} "
        fields = {"level": _level(record), "logger": record.name, **_contents(record)}
        return before + _pairs(fields)


class Warnings(logging.Formatter):
    """A line of key=value with the event and its fields; a note on a decision as a sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        match contents := _contents(record):
            case {"event": "warning" | "note" as kind, "container": container, "text": text}:
                return one_line(f"{kind}: {container}: {text}")
            case _:
                return _pairs(contents)


class JSON(logging.Formatter):
    """A line with a JSON object; numbers and booleans as such, the rest as text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {"time": _time(record), "level": _level(record), "logger": record.name}
        return json.dumps(fields | _contents(record))


def _contents(record: logging.LogRecord) -> dict[str, bool | float | str]:
    """Return the event and fields of a record, or the text of another library's."""
    contents: dict[str, object] = {"text": record.getMessage()}
    if record.name.startswith(OURS):
        contents = {"event": record.getMessage(), **fields_of(record)}
    if repeated := getattr(record, "repeated", 0):
        contents["repeated"] = repeated
    shown = {key: _plain(value) for key, value in contents.items()}
    if record.exc_info and record.exc_info[1]:
        shown["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return shown


def _pairs(fields: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items())


def _plain(value: object) -> bool | float | str:
    """Return a value for JSON; long texts are cut."""
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    left = len(text) - LONGEST
    return f"{text[:LONGEST]}… ({left} characters more)" if left > 0 else text


def _word(value: object) -> str:
    """Return a value as text, quoted if it is not a single word."""
    text = str(value)
    return text if _WORD.fullmatch(text) and text.isprintable() else repr(text)


def _level(record: logging.LogRecord) -> str:
    return record.levelname.lower()


def _priority(record: logging.LogRecord) -> int:
    return next((p for level, p in _PRIORITIES.items() if record.levelno >= level), 7)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _is_journal(stream: TextIO) -> bool:
    """Return whether the journal reads *stream*: JOURNAL_STREAM names its file."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"

"""Logs: one line a record on stderr, as key=value or as JSON.

Owns the form of a line, and that no outside text can forge one. Messages are written
`event=NAME key=%s key=%r`: a value that is no single word is quoted where it stands, and whatever
could end a line is escaped.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from nri_policy.observability.repeats import Repeats
from nri_policy.wording import one_line

OURS = "nri_policy"
LONGEST = 8192  # characters of a message

# what the journal takes for the priority of a line
_PRIORITIES = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}
_WORD = re.compile(r"[^\s'\"=\\]*")
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PAIR = re.compile(rf"(?P<key>[a-z_]+)=(?P<value>{_QUOTED}|[^\s'\"]*)(?:\s+|$)")


class Form(StrEnum):
    """How a record is written."""

    TEXT = "text"
    JSON = "json"


def set_up(form: Form, stream: TextIO = sys.stderr) -> None:
    """Log to *stream* from now on, INFO and above."""
    formatter = Text(journal=_is_journal(stream)) if form is Form.TEXT else JSON()
    handler = Handler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


class Handler(logging.StreamHandler[TextIO]):
    """Writes records, but tells warnings that repeat themselves only now and then."""

    def __init__(self, stream: TextIO, repeats: Repeats | None = None) -> None:
        super().__init__(stream)
        self._repeats = repeats or Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, if it is to be told."""
        try:
            told = record.levelno < logging.WARNING or self._repeats.first(record)
        except Exception:  # noqa: BLE001 - whatever a wrong message raises: logging has its way
            self.handleError(record)
        else:
            if told:
                super().emit(record)

    def tell_repeats(self) -> None:
        """Write how often warnings were repeated, as far as that is due."""
        self.acquire()
        try:
            for record in self._repeats.due():
                super().emit(record)
        finally:
            self.release()


def tell_repeats() -> None:
    """Have the root's handlers tell how often warnings were repeated; to be called regularly."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Handler):
            handler.tell_repeats()


class Debug:
    """Which loggers say more."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}  # levels of those that were switched on

    def follow(self, names: Iterable[str]) -> None:
        """Switch on the loggers *names*, `*` for all, and off what was switched on before."""
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        wanted = dict.fromkeys("" if name == "*" else name for name in names)
        self._before = {name: logging.getLogger(name).level for name in wanted}
        for name in wanted:
            logging.getLogger(name).setLevel(logging.DEBUG)


class Text(logging.Formatter):
    """A line of key=value; with its priority where the *journal* reads it, else with the time."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        before = f"<{_priority(record)}>" if self._journal else f"time={_time(record)} "
        after = "".join(f" {key}={value!r}" for key, value in _added(record).items())
        level = record.levelname.lower()
        return f"{before}level={level} logger={_Word(record.name)} {_message(record)}{after}"


class JSON(logging.Formatter):
    """A line with a JSON object; what is in no key=value of the message is its `text`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, Any] = {}
        message, rest, position = _message(record), [], 0
        while position < len(message):
            if pair := _PAIR.match(message, position):
                fields[pair["key"]] = _plain(pair["value"])
                position = pair.end()
            else:
                word, _, _ = message[position:].partition(" ")
                rest.append(word)
                position += len(word) + 1
        if rest:
            fields["text"] = " ".join(rest)
        fields |= {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_added(record),
        }
        return json.dumps(fields)


class _Word:
    """A value that is quoted if it is no single word."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        text = str(self._value)
        return text if _WORD.fullmatch(text) and text.isprintable() else repr(text)

    def __repr__(self) -> str:
        return repr(self._value)


def _message(record: logging.LogRecord) -> str:
    """Return the message as key=value; those of others, who write as they like, as one value."""
    if not record.name.startswith(OURS):
        return f"text={record.getMessage()[:LONGEST]!r}"
    args = record.args
    if isinstance(args, tuple):
        args = tuple(each if isinstance(each, int | float) else _Word(each) for each in args)
    text = record.msg % args if args else str(record.msg)
    left = len(text) - LONGEST
    return one_line(text[:LONGEST]) + (f"… ({left} characters more)" if left > 0 else "")


def _added(record: logging.LogRecord) -> dict[str, Any]:
    """Return what is told beside the message."""
    added: dict[str, Any] = {}
    if repeated := getattr(record, "repeated", 0):
        added["repeated"] = repeated
    if record.exc_info and record.exc_info[1]:
        added["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return added


def _plain(value: str) -> object:
    """Return what a value says."""
    return ast.literal_eval(value) if value[:1] in ("'", '"') else value


def _priority(record: logging.LogRecord) -> int:
    return next((p for level, p in _PRIORITIES.items() if record.levelno >= level), 7)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _is_journal(stream: TextIO) -> bool:
    """Return whether the journal reads *stream*: it says which file it has made for that."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"

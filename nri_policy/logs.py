"""Logs: one line for one message, whatever text of others is in it."""

from __future__ import annotations

import logging

from nri_policy.wording import printable

MAX_LENGTH = 8192  # characters of a message


class LineFormatter(logging.Formatter):
    """Formats a record so that nothing in its message can pass for another line, or a command."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the record's line, without the traceback that may follow it."""
        cut = record.message[:MAX_LENGTH]
        left = len(record.message) - len(cut)
        more = f"… ({left} characters more)" if left else ""
        record.message = printable(cut).replace("\n", "\\n") + more
        return super().formatMessage(record)

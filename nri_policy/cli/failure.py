"""How a sub-command fails: one line for people and an exit code for programs."""

from __future__ import annotations

from enum import IntEnum

import click


class Exit(IntEnum):
    """The exit codes beside 0; those of a wrong usage are click's own doing."""

    NO = 1  # a negative answer, or an operation that failed
    USAGE = 2
    UNREACHABLE = 3  # the daemon does not answer
    SETTINGS = 78  # EX_CONFIG of sysexits.h


class Failure(click.ClickException):
    """Ends the program with a message on stderr; to be raised where a foreign error arrives."""

    def __init__(self, message: str, code: Exit = Exit.NO) -> None:
        super().__init__(message)
        self.code = code

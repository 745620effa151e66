"""Errors of the wire, split by the side at fault, and the statuses of single requests."""

from __future__ import annotations

from enum import IntEnum


class ProtocolError(Exception):
    """The rules of the wire were broken; the connection is of no more use unless said otherwise."""


class LocalProtocolError(ProtocolError):
    """We were about to break the rules; nothing was sent and the connection is as before."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules; close the connection."""


class Code(IntEnum):
    """Status codes of ttrpc and gRPC that we send or look at."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallRefused(Exception):  # noqa: N818 - an answer to one request, not a fault of the program
    """One request is answered with an error status; the connection lives on.

    Raised by a plugin's method to fail the request, and where a call of ours was failed by the
    runtime. *code* stays a plain int: peers may use numbers that we do not name.
    """

    def __init__(self, message: str, *, code: int = Code.UNKNOWN) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

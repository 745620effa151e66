"""What can go wrong between us and an API server."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


class KubeconfigError(Exception):
    """A kubeconfig cannot be used; the text says which, and why."""


class APIError(Exception):
    """A request failed; the text says how, in the server's words where it has some."""

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        wait: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.code = code  # of HTTP; 0: there was no answer, or one that makes no sense
        self.reason = reason  # as Kubernetes names it: "Forbidden", "NotFound"
        self.details = details or {}
        self.wait = wait  # seconds that the server wants to be left alone


def connection_problem(error: BaseException) -> str | None:
    """Return why there is no connection; None if *error* and its causes are no system's error."""
    found: str | None = None
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, BaseExceptionGroup):  # an attempt for each address
            each = each.exceptions[0]
        if isinstance(each, ConnectionRefusedError):
            return "the connection was refused: nothing listens there"
        if isinstance(each, TimeoutError):
            return "there is no answer"
        if isinstance(each, socket.gaierror):
            return "the name of the host is not known"
        if isinstance(each, OSError) and (text := getattr(each, "verify_message", "")):
            return f"its certificate is not trusted: {text}"
        if isinstance(each, OSError) and each.strerror:
            found = each.strerror
        each = each.__cause__ or each.__context__
    return found

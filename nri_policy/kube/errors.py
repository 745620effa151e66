"""The errors of requests to an API server."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


class KubeconfigError(Exception):
    """A kubeconfig cannot be used; the text names it and the reason."""


class APIError(Exception):
    """A request failed; the text has the reason, in the server's words if it has any."""

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
        self.code = code  # of HTTP; 0: no answer, or a malformed one
        self.reason = reason  # as Kubernetes names it: "Forbidden", "NotFound"
        self.details = details or {}
        self.wait = wait  # seconds that the server asks us to wait


def connection_problem(error: BaseException) -> str | None:
    """Return why there is no connection; None if neither *error* nor its causes is an OSError."""
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

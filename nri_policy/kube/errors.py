"""What can go wrong between us and an API server."""

from __future__ import annotations

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

"""What tests of the daemon's socket share."""

from __future__ import annotations

import pytest

from nri_policy.control import refused_calls, request_limits
from tests.support.patience import HANGS


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no limit pass, however late a request arrives, or a caller hears why it was refused."""
    monkeypatch.setattr(request_limits, "ARRIVAL", 2 * HANGS)
    monkeypatch.setattr(refused_calls, "MAX_TIME", 2 * HANGS)

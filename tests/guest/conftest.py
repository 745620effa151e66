"""What the tests on emulated machines end with; those in `inside` run where this file is not."""

from __future__ import annotations

import pytest

from tools import runtimes

collect_ignore = ["inside"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each machine ran."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    times = [value for each in reports for name, value in each.user_properties if name == "guest"]
    if not times:
        return
    terminalreporter.section("machines")
    for time in times:
        terminalreporter.line(str(time))
    if runtimes.crio() is None:
        terminalreporter.line(f"not tried: CRI-O under systemd; `{runtimes.COMMAND}` builds it")

"""What all tests share."""

from __future__ import annotations

import asyncio
import inspect
import os

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from nri_policy.observability.logs import Warnings

HANGS = 60.0  # seconds; no test waits for time: only one that hangs, on however slow a machine

# How long an example takes is the machine's business. The gate gives the same verdict on the same
# code; other runs, and the long modes, look further.
hypothesis.settings.register_profile("ours", deadline=None)
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gate" if os.environ.get("CI") else "ours")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return what is logged; its text has each line's fields."""
    caplog.handler.setFormatter(Warnings())
    return caplog


class OneForTheHost(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives all end-to-end tests to one process: they share the host's cgroups."""

    def _split_scope(self, nodeid: str) -> str:
        return "e2e" if nodeid.startswith("tests/e2e/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneForTheHost:
    return OneForTheHost(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run asynchronous tests, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), HANGS))
    return True

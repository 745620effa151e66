"""What all tests share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from types import FrameType

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from nri_policy.foundation.wording import counted
from nri_policy.observability.logs import Warnings
from tests.e2e.process import Process
from tests.support.patience import HANGS

MEMORY = "/dev/shm"
END_TO_END = "tests/e2e/"
# The longest of those that xdist, which begins with the modules of most tests, would begin last:
# the others would be done by then, and wait for them.
LONGEST = (
    *("tests/e2e/test_upgrade.py", "tests/e2e/test_given_up.py", "tests/e2e/test_peer_pod.py"),
    *("tests/e2e/test_systemd.py", "tests/e2e/test_owners_storm.py", "tests/e2e/test_storm.py"),
    "tests/e2e/test_rooms.py",
    *("tests/property/test_engine.py", "tests/property/test_replay.py"),
    *("tests/property/test_updates.py", "tests/property/test_waiting.py"),
    "tests/loop/test_plays.py",
)

SINGLE = ("tests/property/", "tests/loop/")  # each test computes for long
# its tests need one folder of the host, and would wait for each other in many processes
TOGETHER = "tests/e2e/test_peer_pod.py"

# Seconds for a test with its fixtures: one that takes longer hangs. Beside busy processes one that
# computes gets a tenth of a CPU.
LIMIT = 6 * HANGS
SLOW = ("tests/cluster/", "tests/guest/", "tests/e2e/debian/")  # their fixtures build and boot
SLOW_LIMIT = 7200.0
STRESS = {"NRI_POLICY_STRESS", "NRI_POLICY_RACE", "NRI_POLICY_STORM"}  # `make stress` runs for long

# The same examples are tried in every run, new ones by `make fuzz`. How long an example takes
# depends on the machine.
_untimed = hypothesis.settings(
    database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("same", _untimed, derandomize=True)
hypothesis.settings.register_profile("new", _untimed, derandomize=False)
hypothesis.settings.load_profile("same")


@pytest.hookimpl(trylast=True)  # after --hypothesis-profile is loaded
def pytest_configure(config: pytest.Config) -> None:
    """Keep files in memory, and constants of loaded modules out of the same examples.

    The constants would change with the other tests of the process, and with an edit anywhere.
    """
    # images of Python set it, and each process of tests would compile all modules: 14 s of CPU
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if "TMPDIR" not in os.environ and _memory_has_room_for(config.args):
        tempfile.tempdir = os.environ["TMPDIR"] = MEMORY
    if hypothesis.settings().derandomize:
        providers._get_local_constants = Constants
    gc.disable()  # until all tests are collected: next to nothing of what is made there goes


def _memory_has_room_for(tests: list[str]) -> bool:
    """Whether files can be in memory, and programs run there: small files on a disk take long."""
    if any("tests/guest" in each for each in tests):  # their machines need it themselves
        return False
    try:
        about = os.statvfs(MEMORY)
    except OSError:
        return False
    room = about.f_bavail * about.f_frsize
    return os.access(MEMORY, os.W_OK) and not about.f_flag & os.ST_NOEXEC and room > 4 << 30


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return what is logged; its text has each line's fields."""
    caplog.handler.setFormatter(Warnings())
    return caplog


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare garbage collections what exists now: they would look through all tests each time."""
    gc.freeze()
    gc.enable()


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a module's tests to one process, which sets up for them once.

    Of a module that runs against real runtimes or nodes, those of each one, which the first
    parameter names, unless it is TOGETHER; of the SINGLE ones each test by itself.
    """

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        if module.startswith(SINGLE):
            return nodeid
        if module.startswith((END_TO_END, "tests/cluster/")) and module != TOGETHER:
            return f"{module} {test.partition('[')[2].rstrip(']').partition('-')[0]}"
        return module

    def _assign_work_unit(self, node: WorkerController) -> None:
        """One process for each CPU begins with what computes, the others with what waits."""
        waits = self.nodes.index(node) >= _cpus()
        own = [scope for scope in self.workqueue if scope.startswith(END_TO_END) == waits]
        if own:
            first = next((scope for scope in own if scope.startswith(LONGEST)), own[0])
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


class HangsError(BaseException):
    """A test takes too long; if that were a failure, Hypothesis would try the example again."""


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes share the tests: four of them mostly wait for runtimes."""
    return _cpus() + 4


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, again each minute if it catches that, and go on with the others."""
    is_slow = item.nodeid.startswith(SLOW) or not STRESS.isdisjoint(os.environ)
    limit = SLOW_LIMIT if is_slow else LIMIT

    def fail(_signal: int, _frame: FrameType | None) -> None:
        raise HangsError(f"the test has not ended within {limit:g} s")

    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit, 60.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run asynchronous tests, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), HANGS))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the programs under test logged, where a test fails."""
    del item
    report = yield
    if report.failed:
        for process in Process.recent:
            report.sections.append((f"log of {process.name}", process.tail()))
    if call.when == "teardown":
        Process.forget_ended()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what was not tried, and why: most reasons name what gets it."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, tests in skipped.most_common():
        terminalreporter.write_line(f"not tried: {counted(tests, 'test')}: {reason}")

"""A control plane for all tests of this folder, with what our manifests install."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import install, register
from tests.cluster.node import PROGRAMS, Node, one_node
from tests.e2e import cgroup, image, packages
from tests.e2e.asking import ready_commands
from tests.e2e.daemon import Daemon
from tools.control_plane import RELEASES
from tools.debs import DebsError

__all__ = ["ready_commands"]  # a fixture

PATIENCE = 420.0  # seconds for an asynchronous test, if its module names no LONGEST_TEST

KUBELET_LOG = 12_000  # characters of it that a failure shows

NODES = ("node-a", "node-b")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run asynchronous tests, each on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    longest = getattr(pyfuncitem.module, "LONGEST_TEST", PATIENCE)
    asyncio.run(asyncio.wait_for(test, longest))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the kubelet logged, where a test on a node fails."""
    del call
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.failed and isinstance(node, Node):
        report.sections.append(("log of the kubelet", node.cluster.log("kubelet")[-KUBELET_LOG:]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was counted."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for each in reports:
        for name, value in each.user_properties:
            if name == "figures":
                terminalreporter.line(str(value))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a cluster of two nodes without anything of ours."""
    require("kube-apiserver", "kube-controller-manager", "kubectl")
    with ControlPlane(tmp_path_factory.mktemp("cluster"), nodes=NODES) as cluster:
        for node in NODES:
            register(cluster, node)
        yield cluster


@pytest.fixture(scope="module")
def cluster(bare: ControlPlane) -> ControlPlane:
    """Return a cluster of two nodes with our manifests."""
    install(bare, NODES[0])
    return bare


@pytest.fixture(scope="module", params=RELEASES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """Yield a cluster of one real node, with our manifests; the module names its HARDWARE.

    And, if any, the releases of Kubernetes that are TOO_OLD, and the MORE_PROGRAMS that it starts.
    """
    if request.param in getattr(request.module, "TOO_OLD", ()):
        pytest.skip(f"Kubernetes {request.param} is too old for it")
    if os.geteuid() != 0 or cgroup.cpuset_hierarchy() is None:
        pytest.skip("a kubelet needs root, and a cgroup hierarchy with the cpuset controller")
    more = getattr(request.module, "MORE_PROGRAMS", ())
    require(*PROGRAMS, *more, release=request.param)
    folder = tmp_path_factory.mktemp("node")
    archive = folder / "busybox.tar"
    with ExitStack() as stack:
        try:
            image.write(packages.busybox(), archive)
            node = stack.enter_context(
                one_node(folder, archive, hardware=request.module.HARDWARE, release=request.param)
            )
        except DebsError as error:
            pytest.skip(f"what a node takes cannot be fetched: {error}")
        install(node.cluster, node.name)
        yield node


@pytest.fixture
def settings() -> dict[str, Any]:
    """The `spec` of the daemon's settings; a module overrides it."""
    return {"reservedResources": {"cpu": 1}}


@pytest.fixture
def daemon(node: Node, settings: Mapping[str, Any], tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on the node, as its pod would run it; with the pods of the test it ends."""
    daemon = node.daemon(tmp_path, settings)
    try:
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        node.clear()
        daemon.close()

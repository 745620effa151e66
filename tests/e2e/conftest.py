"""Fixtures: both versions of containerd side by side, a kubelet, the daemon.

Where they cannot be had (no root, no network) the tests skip and say why; with the environment's
NRI_POLICY_REQUIRE_E2E=1 they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nri_policy.hardware import synthetic
from tests.e2e import cgroup, image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet
from tools.debs import DebsError

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the programs under test logged, where a test fails."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if isinstance(value, Daemon | Containerd):
                report.sections.append((f"log of {name}", value.tail()))
    return report


def unavailable(reason: str) -> NoReturn:
    """Skip the tests, or fail them where they are required."""
    if os.environ.get("NRI_POLICY_REQUIRE_E2E") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def programs() -> Mapping[str, packages.Programs]:
    if os.geteuid() != 0:
        unavailable("containerd needs root")
    if cgroup.cpuset_hierarchy() is None:
        unavailable("no cgroup hierarchy with the cpuset controller is mounted")
    try:
        return {suite: packages.programs(suite) for suite in packages.SUITES}
    except DebsError as error:
        unavailable(f"containerd cannot be fetched: {error}")


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The container image."""
    target = tmp_path_factory.mktemp("image") / "busybox.tar"
    try:
        image.write(packages.busybox(), target)
    except DebsError as error:
        unavailable(f"busybox cannot be fetched: {error}")
    return target


@pytest.fixture(scope="module")
def containerds(
    programs: Mapping[str, packages.Programs], archive: Path
) -> Iterator[Mapping[str, Containerd]]:
    """Every version, all of them running at once."""
    with ExitStack() as stack:
        running = {}
        for suite, its in programs.items():
            running[suite] = Containerd(its)
            stack.callback(running[suite].close)
            running[suite].start()
            running[suite].load(archive)
        yield running


@pytest.fixture(params=packages.SUITES)
def containerd(request: pytest.FixtureRequest, containerds: Mapping[str, Containerd]) -> Containerd:
    return containerds[request.param]


@pytest.fixture
def kubelet(containerd: Containerd) -> Iterator[Kubelet]:
    """Runs pods for real: cpusets reach the cgroups of this host."""
    kubelet = Kubelet(containerd.socket, containerd.cgroup_root, "runc")
    yield kubelet
    kubelet.close()


@pytest.fixture
def stage(containerd: Containerd) -> Iterator[Kubelet]:
    """Runs pods whose cpusets are recorded instead: any hardware can be played."""
    kubelet = Kubelet(containerd.socket, containerd.cgroup_root, "played")
    yield kubelet
    kubelet.close()


@pytest.fixture
def settings() -> dict[str, Any]:
    """The `spec` of the daemon's settings."""
    return {"reservedResources": {"cpu": "750m"}, "preferIsolatedCPUs": False}


@pytest.fixture(scope="session")
def host_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sockets, four NUMA nodes, 16 CPUs: node k has CPUs 4k to 4k+3, siblings adjacent."""
    root = tmp_path_factory.mktemp("host")
    synthetic.write("package:2 numa:2 core:2 pu:2", root)
    return root


@pytest.fixture
def daemon(
    containerd: Containerd, settings: Mapping[str, Any], host_root: Path, tmp_path: Path
) -> Iterator[Daemon]:
    """A daemon that takes part from the start; a module overrides `settings` and `host_root`."""
    daemon = Daemon(
        tmp_path, settings=settings, host_root=host_root, nri_socket=containerd.nri_socket
    )
    try:
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        daemon.close()

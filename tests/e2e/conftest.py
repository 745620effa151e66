"""Fixtures: three versions of containerd, CRI-O, a kubelet, the daemon.

Where they cannot be had (no root, no network) the tests skip and say why; with the environment's
NRI_POLICY_REQUIRE_E2E=1 they fail instead. The runtimes that Debian does not have are tested with
NRI_POLICY_EVERY_RUNTIME=1, where they are built (`tools.runtimes`), and skipped elsewhere in any
case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nri_policy.hardware import synthetic
from tests.e2e import cgroup, image, packages
from tests.e2e.asking import ready_commands
from tests.e2e.containerd import Containerd
from tests.e2e.crio import Crio
from tests.e2e.daemon import PROGRAM, Daemon
from tests.e2e.kubelet import Kubelet
from tests.e2e.runtime import PATIENCE, Runtime
from tools import runtimes
from tools.debs import DebsError

__all__ = ["ready_commands"]  # a fixture

HERE = Path(__file__).parent
NEWEST, CRIO = "newest", "cri-o"
BUILT = {NEWEST: f"containerd {runtimes.NEWEST_CONTAINERD}", CRIO: f"CRI-O {runtimes.CRIO}"}
RUNTIMES = (*packages.SUITES, *BUILT)

MakeRuntime = Callable[..., Runtime]  # of a name and a patience


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


def unavailable(reason: str) -> NoReturn:
    """Skip the tests, or fail them where they are required."""
    if os.environ.get("NRI_POLICY_REQUIRE_E2E") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def programs() -> Mapping[str, packages.Programs]:
    if os.geteuid() != 0:
        unavailable("runtimes need root")
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


@pytest.fixture(scope="session")
def make_runtime(programs: Mapping[str, packages.Programs]) -> MakeRuntime:
    """What makes one of the RUNTIMES, which is not started yet."""

    def make(name: str, patience: int = PATIENCE) -> Runtime:
        if name in programs:
            return Containerd(programs[name], patience=patience)
        if os.environ.get("NRI_POLICY_EVERY_RUNTIME") != "1":
            pytest.skip(f"{BUILT[name]}: `make test-all` and `.ci/run` try it")
        newest = runtimes.NEWEST_CONTAINERD
        folder = runtimes.containerd(newest) if name == NEWEST else runtimes.crio()
        if folder is None:
            pytest.skip(f"{BUILT[name]} is not built; `{runtimes.COMMAND}` builds it")
        if name == NEWEST:
            return Containerd(packages.programs_in(folder, folder / "runc"), patience=patience)
        try:
            return Crio(packages.crio(folder), patience=patience)
        except DebsError as error:
            unavailable(f"what CRI-O needs cannot be fetched: {error}")

    return make


@contextmanager
def running(runtime: Runtime, archive: Path) -> Iterator[Runtime]:
    """Run a runtime that has the image."""
    try:
        runtime.start()
        runtime.load(archive)
        yield runtime
    finally:
        runtime.close()


@pytest.fixture(scope="module")
def patience() -> int:
    """What the runtimes have with plugins, in seconds."""
    return PATIENCE


@pytest.fixture(scope="module")
def start_runtime(
    make_runtime: MakeRuntime, archive: Path, patience: int
) -> Iterator[Callable[[str], Runtime]]:
    """What returns one of the RUNTIMES, started on first use; it runs until the module's end."""
    with ExitStack() as stack:

        @cache
        def start(name: str) -> Runtime:
            return stack.enter_context(running(make_runtime(name, patience), archive))

        yield start


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, start_runtime: Callable[[str], Runtime]) -> Runtime:
    return start_runtime(request.param)


@pytest.fixture
def kubelet(runtime: Runtime) -> Iterator[Kubelet]:
    """Runs pods for real: cpusets reach the cgroups of this host."""
    kubelet = runtime.kubelet("runc")
    yield kubelet
    kubelet.close()


@pytest.fixture
def stage(runtime: Runtime) -> Iterator[Kubelet]:
    """Runs pods whose cpusets are recorded instead: any hardware can be played."""
    kubelet = runtime.kubelet("played")
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
def program() -> Path:
    """What is run as the daemon."""
    return PROGRAM


@pytest.fixture
def daemon(
    runtime: Runtime, settings: Mapping[str, Any], host_root: Path, tmp_path: Path, program: Path
) -> Iterator[Daemon]:
    """A daemon that takes part from the start.

    A module overrides `settings`, `host_root` and `program`.
    """
    daemon = Daemon(
        tmp_path,
        settings=settings,
        host_root=host_root,
        nri_socket=runtime.nri_socket,
        program=program,
    )
    with daemon.running():
        yield daemon

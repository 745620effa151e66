"""Inside the guest: a runtime, and a daemon on the guest's own hardware, for all tests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.crio import Crio
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet
from tests.e2e.runtime import Runtime
from tests.guest.inside import kernel
from tests.guest.inside.scene import SETTINGS, Scene, ask, pods

SUITE = "forky"
CRIO = Path("/opt/cri-o")  # where it was built (`tools.runtimes`)
#: What a test may be parametrized with, for `runtime`.
RUNTIMES = ("containerd", *(["CRI-O"] if CRIO.exists() else []))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the kernel and the daemon logged, where a test fails."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        report.sections.append(("log of the kernel", kernel.log()[-4000:]))
        for value in item.funcargs.values():
            if isinstance(value, Scene):
                report.sections.append(("log of the daemon", value.daemon.tail()))
    return report


@pytest.fixture(scope="session", params=RUNTIMES[:1])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """Containerd, or the one of RUNTIMES that a test is parametrized with."""
    archive = tmp_path_factory.mktemp("image") / "busybox.tar"
    image.write(Path("/usr/bin/busybox"), archive)
    runc, systemd = Path(__file__).with_name("runc.sh"), Path("/run/systemd/private").exists()
    runtime: Runtime
    if request.param == "containerd":
        programs = packages.programs_in(Path("/opt", SUITE), runc)
        runtime = Containerd(programs, emulated=True, systemd=systemd)
    else:
        conmon = Path("/usr/bin/conmon")
        of_crio = packages.CrioPrograms(
            crio=CRIO / "crio", pinns=CRIO / "pinns", conmon=conmon, runc=runc
        )
        runtime = Crio(of_crio, emulated=True, systemd=systemd)
    runtime.start()
    runtime.load(archive)
    yield runtime
    runtime.close()


@pytest.fixture(scope="session")
def running(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    daemon = Daemon(folder, settings=SETTINGS, host_root=Path("/"), nri_socket=runtime.nri_socket)
    try:
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """The `spec` of the daemon's settings."""
    return SETTINGS


@pytest.fixture(scope="module")
def daemon(running: Daemon, settings: dict[str, Any]) -> Daemon:
    running.configure(settings)
    assert ask(running, lambda client: client.reload().accepted)
    return running


@pytest.fixture
def scene(runtime: Runtime, daemon: Daemon) -> Iterator[Scene]:
    """Pods that go when the test is over."""
    with pods(runtime) as kubelet:
        yield Scene(kubelet=kubelet, daemon=daemon)


@pytest.fixture
def kubelet(scene: Scene) -> Kubelet:
    return scene.kubelet

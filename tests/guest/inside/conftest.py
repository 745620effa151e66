"""Inside the guest: one containerd, one daemon on the guest's own hardware, for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet

SUITE = "forky"


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    archive = tmp_path_factory.mktemp("image") / "busybox.tar"
    image.write(Path("/usr/bin/busybox"), archive)
    containerd = Containerd(packages.programs_in(Path("/opt", SUITE), Path("/usr/sbin/runc")))
    containerd.start()
    containerd.load(archive)
    yield containerd
    containerd.close()


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """The `spec` of the daemon's settings."""
    return {"reservedResources": {"cpu": "cpuset:0"}}


@pytest.fixture(scope="module")
def daemon(
    containerd: Containerd, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    daemon = Daemon(
        folder, settings=settings, host_root=Path("/"), nri_socket=containerd.nri_socket
    )
    try:
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        daemon.close()


@pytest.fixture
def kubelet(containerd: Containerd, daemon: Daemon) -> Iterator[Kubelet]:
    del daemon  # takes part before anything runs
    kubelet = Kubelet(containerd.socket, containerd.cgroup_root, "runc")
    yield kubelet
    kubelet.close()

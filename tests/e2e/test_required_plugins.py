"""A runtime whose validator requires the daemon, while that is there and while it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.conftest import NEWEST, running
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT
from tests.e2e.runtime import Runtime

TOLERATE = "tolerate-missing-nri-plugins.noderesource.dev"
REQUIRE = {"required-plugins.noderesource.dev": '["nri-policy"]'}


@pytest.fixture(params=[(), ("nri-policy",), ("90-nri-policy",)], ids=["none", "name", "index"])
def required(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The plugins that the runtime's configuration requires of every container."""
    names: tuple[str, ...] = request.param
    return names


@pytest.fixture
def validating(
    make_runtime: Callable[[str], Runtime], archive: Path, required: tuple[str, ...]
) -> Iterator[Runtime]:
    runtime = make_runtime(NEWEST)
    with (runtime.folder / "config.toml").open("a") as config:
        config.write(f"""
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
required_plugins = {[*required]}
tolerate_missing_plugins_annotation = "{TOLERATE}"
""")
    with running(runtime, archive):
        yield runtime


def test_a_container_waits_for_a_required_plugin(
    validating: Runtime,
    required: tuple[str, ...],
    settings: Mapping[str, Any],
    host_root: Path,
    tmp_path: Path,
) -> None:
    stage = validating.kubelet("played")

    def refusal(annotations: Mapping[str, str] | None = None) -> str:
        pod = stage.run_pod("pod", {"main": BEST_EFFORT}, annotations=annotations)
        try:
            pod.create("main").start()
        except grpc.RpcError as error:
            return str(error)
        finally:
            pod.delete()
        return ""

    assert ("not present" in refusal()) is bool(required)
    assert "not present" in refusal(REQUIRE)
    assert refusal({TOLERATE: "true"}) == refusal({**REQUIRE, f"{TOLERATE}/pod": "true"}) == ""
    assert refusal({**REQUIRE, f"{TOLERATE}/container.main": "true"}) == ""
    daemon = Daemon(
        tmp_path, settings=settings, host_root=host_root, nri_socket=validating.nri_socket
    )
    try:
        daemon.start()
        assert refusal() == refusal(REQUIRE) == ""
        daemon.stop()
        assert "not present" in refusal(REQUIRE)
    finally:
        daemon.close()
        stage.close()

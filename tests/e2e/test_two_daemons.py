"""Two daemons with different folders on one runtime: the second waits, and each says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures


@pytest.fixture
def daemons(
    runtime: Runtime, settings: Mapping[str, Any], host_root: Path, tmp_path: Path
) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons, of which the first takes part."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = [
        Daemon(folder, settings=settings, host_root=host_root, nri_socket=runtime.nri_socket)
        for folder in folders
    ]
    try:
        first.start()
        yield first, second
    finally:
        first.close()
        second.close()


def test_the_second_of_two_daemons_waits_and_goes_on_when_the_first_has_ended(
    stage: Kubelet, daemons: tuple[Daemon, Daemon]
) -> None:
    first, second = daemons
    second.launch()
    second.await_line("event=another-daemon ")
    stage.run("while-both-run", BEST_EFFORT)
    for each, said in ((second, "answers this runtime already"), (first, "waits to answer")):
        assert said in " ".join(each.ask("status").stdout.split())  # however lines are broken
    audit = second.ask("audit")
    assert audit.returncode != 0
    assert "it has another daemon, process" in audit.stderr
    first.stop()
    second.await_synchronized()
    assert "default/while-both-run/main" in second.containers()
    stage.run("afterwards", BEST_EFFORT)
    assert "another daemon" not in second.ask("status").stdout


def test_a_daemon_that_is_killed_has_a_successor(
    stage: Kubelet, daemons: tuple[Daemon, Daemon]
) -> None:
    first, second = daemons
    stage.run("before", BEST_EFFORT)
    second.launch()
    second.await_line("event=another-daemon ")
    first.kill()
    second.await_synchronized()
    assert "default/before/main" in second.containers()


def test_status_says_that_the_runtime_refuses_what_two_plugins_set(
    stage: Kubelet, daemons: tuple[Daemon, Daemon], tmp_path: Path
) -> None:
    """As where the other one is of another kind, and takes no lock."""
    first, second = daemons
    program = tmp_path / "careless"
    program.write_text(
        f"#!{sys.executable}\nfrom nri_policy.daemon.rivals import Rivals\n"
        "async def keep_out(*_): pass\nRivals.keep_out = keep_out\n"
        "from nri_policy.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    second._run[0] = str(program)
    second.start()
    for name in ("one", "two", "three"):
        pod = stage.run_pod(name, {"main": BEST_EFFORT})
        with pytest.raises(grpc.RpcError, match="both tried to set"):
            pod.create("main")
    said = "the runtime created no container of the last 3 pods"

    def status() -> str:
        return " ".join(first.ask("status").stdout.split())

    # CRI-O says nothing of it
    assert said in eventually(status, lambda shown: said in shown, every=1.0)
    second.stop()
    stage.run("good", BEST_EFFORT)
    assert said not in status()

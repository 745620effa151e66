"""What runs beside the daemon neither takes it down nor stops unseen."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nri_policy.daemon.process import AGAIN, LOCK, Options, keep_up, run, running
from nri_policy.engine.event import Reconfigured
from nri_policy.foundation import singleton
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.singleton import AlreadyRunningError, only_instance
from nri_policy.hardware import synthetic
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.settings import Settings, SettingsError
from nri_policy.settings_sources.kubernetes import LABEL
from nri_policy.settings_sources.settings_file import SettingsFile
from tests.support import nodes, stores
from tests.support.apiserver import APIServer
from tests.support.daemon import served
from tests.support.patience import HANGS


def options(folder: Path) -> Options:
    """Return those of a daemon that has everything below *folder*."""
    return Options(
        host_root=folder,
        runtime=folder / "nri.sock",
        identity=PluginIdentity(name="nri-policy", index="90"),
        state_dir=folder / "state",
        containers_dir=folder / "containers",
        control_socket=folder / "control.sock",
        tuner_socket=folder / "tuner.sock",
        kubelet_dir=folder / "kubelet",
        kubeconfig=None,
        node_name="a",
        config_namespace="kube-system",
        group_label=LABEL,
        nrt_file=None,
        probe_endpoint=None,
        once_synchronized_exit=False,
    )


def test_a_part_that_fails_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []
    slept: list[float] = []

    async def part() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError("a bug of ours")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(keep_up("audit", part, Clock(sleep=sleep)))
    assert runs == [0, 1, 2]
    assert slept == [AGAIN, AGAIN]
    assert [(each.message, vars(each)["part"]) for each in caplog.records] == [
        ("failed", "audit")
    ] * 2


def test_a_hangup_before_the_first_settings_are_read_does_not_end_the_daemon(
    tmp_path: Path,
) -> None:
    """It would by default, and count as an end in order: nobody would start the daemon again."""
    before = signal.signal(signal.SIGHUP, lambda *_: pytest.fail("nobody has taken it over"))

    class Hasty(SettingsFile):
        def load(self) -> Settings:
            signal.raise_signal(signal.SIGHUP)
            raise SettingsError("a file", ())

    try:
        with pytest.raises(SettingsError):
            asyncio.run(run(Hasty(tmp_path / "settings.yaml"), options(tmp_path)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [*tmp_path.iterdir()] == [], "bad settings leave nothing behind"


def test_two_daemons_never_show_containers_things_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take the other's containers for gone."""
    monkeypatch.setattr(singleton, "SUCCESSION", 0)
    (tmp_path / "settings.yaml").write_text(
        "{apiVersion: config.nri/v1alpha1, kind: TopologyAwarePolicy,"
        " spec: {reservedResources: {cpu: 750m}}}"
    )
    (tmp_path / "containers").mkdir()
    held = only_instance(tmp_path / "containers" / LOCK)
    with held, pytest.raises(AlreadyRunningError, match="containers"):
        asyncio.run(run(SettingsFile(tmp_path / "settings.yaml"), options(tmp_path)))


def test_parts_have_ended_when_their_time_is_over() -> None:
    ended: list[str] = []

    async def part(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def check() -> None:
        async with running({name: partial(part, name) for name in ("audit", "reload")}):
            await asyncio.sleep(0)
            assert ended == []
        assert sorted(ended) == ["audit", "reload"]

    asyncio.run(check())


def test_a_reload_that_has_begun_is_in_the_store_when_the_daemon_lets_go_of_it(
    tmp_path: Path,
) -> None:
    """A reload requested at the socket finishes even after the server has stopped."""
    reading, read = threading.Event(), threading.Event()

    def load() -> Settings:
        reading.set()
        read.wait(HANGS)
        return nodes.settings(preferSharedCPUs=True)

    async def check() -> Path:
        async with served(tmp_path, load=load) as node:
            reloading = asyncio.create_task(node.daemon.reloads.reload())
            await asyncio.to_thread(reading.wait, HANGS)
            closing = asyncio.create_task(node.daemon.close())
            await asyncio.sleep(0)
            read.set()
            await closing
            assert reloading.done()
            assert node.daemon._store._connection is None, "nobody has opened it again"
            return node.daemon._store.path

    path = asyncio.run(check())
    assert isinstance(stores.records(path)[-1].event, Reconfigured)


# a daemon whose end never comes
STUBBORN = """
import asyncio, sys
from nri_policy import cli
from nri_policy.daemon.daemon import Daemon

async def leave(self):
    print("leaving", flush=True)
    await asyncio.Event().wait()

Daemon.leave = leave
cli.main(sys.argv[1:])
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    synthetic.write(nodes.SMALL, tmp_path)
    settings = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
    (tmp_path / "settings.yaml").write_text(
        yaml.safe_dump({**settings, "spec": {"reservedResources": {"cpu": 1}}})
    )
    places = {
        "--settings": "settings.yaml",
        "--host-root": ".",
        "--state-dir": "state",
        "--containers-dir": "containers",
        "--control-socket": "control.sock",
        "--nri-socket": "nri.sock",
    }
    command = [part for option, name in places.items() for part in (option, str(tmp_path / name))]
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN, "run", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "not-connected" not in (line := process.stderr.readline()):
            assert line
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)],
)
def test_a_daemon_that_is_told_twice_to_end_does_so_at_once(
    stubborn: subprocess.Popen[str], first: signal.Signals, second: signal.Signals
) -> None:
    stubborn.send_signal(first)
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "leaving\n"
    stubborn.send_signal(second)
    _, said = stubborn.communicate(timeout=HANGS)
    assert stubborn.returncode == -second
    assert f"event=ended reason='{second.name} came a second time'" in said


async def test_the_slices_of_the_node_are_followed_where_the_kubelet_is_asked_for_devices(
    tmp_path: Path,
) -> None:
    synthetic.write(nodes.SMALL, tmp_path)
    settings = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
    spec = {"reservedResources": {"cpu": 1}, "agent": {"podResourceAPI": True}}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({**settings, "spec": spec}))
    async with APIServer(tmp_path, node="worker") as server:
        in_cluster = replace(
            options(tmp_path),
            kubeconfig=server.kubeconfig,
            node_name="worker",
            config_namespace="",
        )
        running = asyncio.create_task(run(SettingsFile(path), in_cluster))
        try:
            await server.until(lambda: any("watch" in each.query for each in server.requests))
        finally:
            running.cancel()
            await asyncio.wait({running})
            gc.unfreeze()
    asked = {(each.path, each.query["fieldSelector"]) for each in server.requests}
    assert asked == {("/apis/resource.k8s.io/v1/resourceslices", "spec.nodeName=worker")}

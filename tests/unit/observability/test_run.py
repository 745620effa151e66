"""The real daemon, as a service manager and a scraper see it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from nri_policy.daemon.process import THREADS
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support.daemon import PATIENT, pod
from tests.support.metrics_client import ask
from tests.support.patience import HANGS
from tests.support.ports import free_port


class Run:
    """One run of `nri-policy run`, its service manager, and its runtime, which is not there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = EmbeddedRuntime(
            folder / "nri.sock",
            online_cpus=CPUSet(range(4)),
            memory_nodes=CPUSet([0]),
            timeouts=PATIENT,
        )
        self.process: asyncio.subprocess.Process
        self._said: list[str] = []
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self._manager.setblocking(False)

    def settings(self, **spec: Any) -> None:
        document = {
            "apiVersion": "config.nri/v1alpha1",
            "kind": "TopologyAwarePolicy",
            "metadata": {"name": "default"},
            "spec": {"reservedResources": {"cpu": 1}, **spec},
        }
        (self.folder / "config.yaml").write_text(json.dumps(document))

    async def start(self, *options: str) -> None:
        synthetic.write("package:1 core:4 pu:1", self.folder / "host")
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(self.folder / "notify"),
            "WATCHDOG_USEC": "400000",
        }
        folders = {
            "--settings": "config.yaml",
            "--host-root": "host",
            "--nri-socket": "nri.sock",
            "--state-dir": "state",
            "--containers-dir": "containers",
            "--control-socket": "control.sock",
        }
        named = [str(part) for k, v in folders.items() for part in (k, self.folder / v)]
        program = [sys.executable, "-m", "nri_policy.cli", "run", *named, *options]
        self.process = await asyncio.create_subprocess_exec(
            *program, env=environment, stderr=asyncio.subprocess.PIPE
        )

    async def hear(self, wanted: str) -> list[str]:
        """Return what the service manager hears until a line begins with *wanted*."""
        heard: list[str] = []
        async with asyncio.timeout(HANGS):
            while not (heard and heard[-1].startswith(wanted)):
                if not self._said:
                    loop = asyncio.get_running_loop()
                    self._said = (await loop.sock_recv(self._manager, 4096)).decode().split("\n")
                heard.append(self._said.pop(0))
        return heard

    async def read(self, wanted: str) -> str:
        """Return the next line of the log that has *wanted*."""
        assert self.process.stderr is not None
        async with asyncio.timeout(HANGS):
            while line := (await self.process.stderr.readline()).decode():
                if wanted in line:
                    return line
        raise AssertionError(f"no {wanted!r} in the log")

    async def end(self) -> int:
        self.process.terminate()
        await self.process.communicate()
        return await self.process.wait()


@asynccontextmanager
async def running(folder: Path, *options: str, **spec: Any) -> AsyncIterator[Run]:
    run = Run(folder)
    run.settings(**spec)
    await run.start(*options)
    try:
        yield run
    finally:
        if run.process.returncode is None:
            run.process.kill()
            await run.process.communicate()
        run._manager.close()


async def test_the_service_manager_hears_of_a_whole_life(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        before = await run.hear("WATCHDOG=1")
        assert "EXTEND_TIMEOUT_USEC=30000000" in before
        assert "STATUS=waiting for the runtime" in await run.hear("STATUS=") + before
        assert "READY=1" not in before
        async with run.runtime:
            before = await run.hear("READY=1")
            assert not any(line.startswith("STATUS=1") for line in before)
            assert "STATUS=1 pools, 0 containers" in await run.hear("STATUS=")
            await run.runtime.start_pod(pod("web", "1"))
            assert (await run.hear("STATUS=1 pools, 1"))[-1] == (
                "STATUS=1 pools, 1 containers; last decision: default/web/main placed"
            )
            run.process.send_signal(signal.SIGHUP)
            await run.hear("RELOADING=1")
            assert (await run.hear("MONOTONIC_USEC="))[-1].partition("=")[2].isdecimal()
            await run.hear("READY=1")
            await run.hear("WATCHDOG=1")
            ended = asyncio.create_task(run.end())
            await run.hear("STOPPING=1")
            assert await ended == 0


async def test_its_threads_for_files_run_from_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        await run.hear("WATCHDOG=1")
        assert psutil.Process(run.process.pid).num_threads() == 1 + THREADS
        assert await run.end() == 0


async def test_a_reload_opens_moves_and_closes_the_endpoint_of_the_daemon(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    async with running(tmp_path) as run, run.runtime:
        await run.read("event=synchronized")
        for port in (first, second):
            endpoint = {"httpEndpoint": f"127.0.0.1:{port}", "prometheusExport": True}
            run.settings(instrumentation=endpoint)
            run.process.send_signal(signal.SIGHUP)
            await run.read("event=reloaded")
            assert (await ask(port, "/metrics"))[0] == 200
        with pytest.raises(ConnectionRefusedError):
            await ask(first, "/livez")
        run.settings(instrumentation={"httpEndpoint": f"127.0.0.1:{port}", "prometheusExport": 1})
        run.process.send_signal(signal.SIGHUP)
        assert "kept=old" in await run.read("event=reload-refused")
        text = ""
        while 'result="refused"} 1.0' not in text:  # a text is served for a second
            status, text = await ask(second, "/metrics")
            assert status == 200
            await asyncio.sleep(0.05)
        assert 'nri_policy_config_reloads_total{result="refused"} 1.0' in text
        assert 'nri_policy_config_reloads_total{result="taken"} 2.0' in text
        assert "nri_policy_config_last_reload_successful 0.0" in text
        while "nri_policy_loop_lag_seconds_count 0.0" in text:  # each beat counts
            await asyncio.sleep(0.05)
            _, text = await ask(second, "/metrics")
        run.settings()
        run.process.send_signal(signal.SIGHUP)
        await run.read("event=reloaded")
        with pytest.raises(ConnectionRefusedError):
            await ask(second, "/livez")
        assert await run.end() == 0


async def test_a_start_with_a_port_that_is_taken_ends_with_a_clear_text(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with running(tmp_path, instrumentation={"httpEndpoint": address}) as run:
            _, log = await run.process.communicate()
            assert run.process.returncode == 1
    text = f"instrumentation.httpEndpoint {address}: cannot listen there: Address already in use"
    assert text in log.decode().splitlines()[-1]


async def test_probes_have_an_address_of_their_own_that_no_setting_changes(tmp_path: Path) -> None:
    port = free_port()
    option = f"--probe-endpoint=127.0.0.1:{port}"
    async with running(tmp_path, option) as run, run.runtime:
        await run.read("event=synchronized")
        assert await ask(port, "/livez") == (200, "ok\n")
        assert (await ask(port, "/metrics"))[0] == 404
        assert await run.end() == 0


async def test_an_address_of_probes_that_is_taken_or_none_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with running(tmp_path, f"--probe-endpoint=127.0.0.1:{port}") as run:
            _, log = await run.process.communicate()
            assert run.process.returncode == 1
    text = f"--probe-endpoint 127.0.0.1:{port}: cannot listen there: Address already in use"
    assert text in log.decode().splitlines()[-1]


async def test_every_line_of_a_log_in_json_is_an_object(tmp_path: Path) -> None:
    async with running(tmp_path, "--log-format", "json", log={"debug": ["*"]}) as run, run.runtime:
        line = json.loads(await run.read('"event": "synchronized"'))
        assert (line["level"], line["logger"], line["containers"]) == (
            "info",
            "nri_policy.plugin.policy_plugin",
            0,
        )
        run.settings(log={"debug": []})
        run.process.send_signal(signal.SIGHUP)
        await run.read('"event": "reloaded"')
        run.process.terminate()
        _, rest = await run.process.communicate()
    lines = [json.loads(line) for line in rest.decode().splitlines()]
    assert lines[-1]["event"] == "ended"
    assert "debug" not in {line["level"] for line in lines}

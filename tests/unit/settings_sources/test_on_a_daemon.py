"""A daemon whose settings are an object of an API server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware import synthetic
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.settings import API_VERSION, KIND
from nri_policy.settings_sources.cluster_settings import ClusterSettingsSource
from nri_policy.settings_sources.kubernetes import Kubernetes
from tests.support import nodes
from tests.support.apiserver import CUT, Answer, APIServer, Request
from tests.support.clock import SleepingClock
from tests.support.daemon import pod, served
from tests.unit.settings_sources.test_kubernetes import OBJECTS


class Objects:
    """One object, `default`; who watches it hears nothing until it has changed."""

    def __init__(self, server: APIServer) -> None:
        self._server = server
        self.generation = 0
        self.spec: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}

    def __call__(self, request: Request) -> Answer | None:
        if request.path == "/api/v1/nodes/localhost":
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "localhost"}}
            return Answer(status=200, body=node)
        if request.method == "PATCH" and request.path == f"{OBJECTS}/default/status":
            self.nodes |= request.body["status"]["nodes"]
            return Answer(status=200, body=self.object())
        if request.path != OBJECTS:
            return None
        if request.query.get("watch") == "true":
            return CUT  # the list will tell
        there = self.generation and request.query["fieldSelector"] == "metadata.name=default"
        metadata = {"resourceVersion": "1"}
        items = [self.object()] if there else []
        body = {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}
        return Answer(status=200, body=body)

    def object(self) -> dict[str, Any]:
        metadata = {"name": "default", "generation": self.generation, "resourceVersion": "1"}
        return {"metadata": metadata, "spec": self.spec, "status": {"nodes": self.nodes}}

    def put(self, **spec: Any) -> None:
        self.generation += 1
        self.spec = {"reservedResources": {"cpu": 1}, "preferIsolatedCPUs": False, **spec}

    async def said(self) -> dict[str, Any]:
        """Return what the node says of the latest generation."""
        await self._server.until(
            lambda: self.nodes.get("localhost", {}).get("generation") == self.generation
        )
        status: dict[str, Any] = self.nodes["localhost"]
        return status


class Pauses:
    """Sleeps that end at once; after `all_of`, sleeps that never end."""

    def __init__(self) -> None:
        self._short = True
        self._asleep = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)
        if not self._short:
            self._asleep.release()
            await asyncio.Event().wait()

    async def all_of(self, number: int) -> None:
        """Let sleeps never end; wait until *number* tasks sleep, and none is in a request."""
        self._short = False
        for _ in range(number):
            await self._asleep.acquire()


async def started(
    server: APIServer, folder: Path, *more: str, config: str = "none.yaml"
) -> asyncio.subprocess.Process:
    """Return a daemon as a process of its own, without a runtime."""
    synthetic.write(nodes.SMALL, folder)
    places = {
        "--settings": config,
        "--host-root": ".",
        "--state-dir": "state",
        "--containers-dir": "containers",
        "--control-socket": "control.sock",
        "--nri-socket": "none.sock",
    }
    command = [part for option, name in places.items() for part in (option, str(folder / name))]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nri_policy.cli", "run", *command),
        *("--kubeconfig", str(server.kubeconfig), "--node-name", "localhost"),
        *more,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_a_daemon_starts_with_what_the_cluster_has_for_it(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server:
        objects = server.disturb = Objects(server)
        objects.put()
        daemon = await started(server, tmp_path)
        try:
            status = await objects.said()
            assert (status["status"], status["generation"]) == ("Success", 1)
        finally:
            daemon.terminate()
            await daemon.communicate()


@pytest.mark.parametrize(
    ("option", "pinned"), [((), False), (("--config-namespace=",), True)], ids=["", "file alone"]
)
async def test_a_first_start_without_the_cluster_pins_nothing(
    option: tuple[str, ...], pinned: bool, tmp_path: Path
) -> None:
    spec = {"reservedResources": {"cpu": 1}}
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "default"}}
    (tmp_path / "c.yaml").write_text(json.dumps({**head, "spec": spec}))
    async with APIServer(tmp_path) as server:
        server.disturb = lambda _: Answer(status=503, body="<html>", headers={"Content-Type": "x"})
        daemon = await started(server, tmp_path, *option, config="c.yaml")
        assert daemon.stderr is not None
        said = []
        while line := await daemon.stderr.readline():
            said.append(line.decode())
            if "event=started" in said[-1]:
                break
        daemon.terminate()
        await daemon.communicate()
        asked = {each.path for each in server.requests}
    assert "event=started" in said[-1]
    assert any("nothing is pinned" in each for each in said) != pinned
    assert (OBJECTS in asked) != pinned


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"pinCPUs": True}, "TopologyAwarePolicy default: pinCPUs: unknown field"),
        ({"reservedResources": {"cpu": 99}}, "reservedResources.cpu: cannot reserve 99 CPUs"),
    ],
    ids=["make no sense", "ask the impossible"],
)
async def test_a_daemon_that_cannot_start_says_so_in_the_cluster(
    spec: dict[str, Any], error: str, tmp_path: Path
) -> None:
    async with APIServer(tmp_path) as server:
        objects = server.disturb = Objects(server)
        objects.put(**spec)
        daemon = await started(server, tmp_path)
        _, errors = await daemon.communicate()
        assert daemon.returncode == 78
        assert error.encode() in errors
        assert objects.nodes["localhost"]["status"] == "Failure"


async def test_settings_in_the_cluster_are_taken_or_refused_and_that_is_said(
    tmp_path: Path,
) -> None:
    async with APIServer(tmp_path) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        objects = server.disturb = Objects(server)
        client = Client(connect)
        due, pauses = asyncio.Event(), Pauses()
        source = ClusterSettingsSource(
            Kubernetes(client, "kube-system"),
            "localhost",
            kept=tmp_path / "settings.json",
            otherwise=nodes.settings,
            changed=due.set,
            clock=SleepingClock(sleep=pauses.sleep),
        )
        following = asyncio.create_task(source.run())
        await source.wait_answered()
        async with served(tmp_path, load=source.load, report=source.report) as node:

            async def reload() -> None:
                while await due.wait():
                    due.clear()
                    await node.daemon.reloads.reload()

            reloading = asyncio.create_task(reload())
            await node.start(pod("one", "4"), pod("two", "4"), pod("three", "4"))

            objects.put(preferSharedCPUs=False, unlimitedBurstable="numa")
            status = await objects.said()
            assert (status["status"], status["errors"]) == ("Success", None)
            in_force = node.daemon.node.view.layout.settings
            assert in_force.origin == "TopologyAwarePolicy default"

            objects.put(reservedResources={"cpu": 5})
            status = await objects.said()
            assert status["status"] == "Failure"
            assert "no pool has room for 4 exclusive CPUs" in status["errors"]
            assert node.daemon.node.view.layout.settings is in_force

            objects.put(pinCPUs=True)
            status = await objects.said()
            assert "did you mean 'pinCPU'?" in status["errors"]
            reloading.cancel()
        await pauses.all_of(3)
        following.cancel()
        await asyncio.wait({following})
        await client.close()

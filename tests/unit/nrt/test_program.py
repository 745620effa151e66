"""`nri-policy run` as its own process: where it publishes, and how it starts and ends with that."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import nodes
from tests.support.apiserver import APIServer
from tests.support.daemon import PATIENT, pod


async def program(folder: Path, *options: str, **environment: str) -> Process:
    """Start the daemon on a small machine of its own."""
    config = folder / "settings.yaml"
    synthetic.write(nodes.SMALL, folder / "host")
    head = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
    spec = {"reservedResources": {"cpu": "750m"}}
    config.write_text(json.dumps({**head, "metadata": {"name": "default"}, "spec": spec}))
    places = {
        "--settings": config,
        "--host-root": folder / "host",
        "--nri-socket": folder / "nri.sock",
        "--state-dir": folder / "state",
        "--containers-dir": folder / "containers",
        "--control-socket": folder / "control.sock",
    }
    words = [str(word) for place in places.items() for word in place]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("KUBERNETES_", "NODE_"))}
    command = [sys.executable, "-m", "nri_policy.cli", "run", *words, *options]
    return await asyncio.create_subprocess_exec(
        *command, env={**outside, **environment}, stderr=PIPE
    )


async def ended(process: Process) -> tuple[int | None, str]:
    _, said = await process.communicate()
    return process.returncode, said.decode()


def runtime(folder: Path) -> EmbeddedRuntime:
    return EmbeddedRuntime(
        folder / "nri.sock",
        online_cpus=CPUSet(range(16)),
        memory_nodes=CPUSet(range(4)),
        timeouts=PATIENT,
    )


async def test_it_publishes_from_its_start_to_its_end(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, runtime(tmp_path) as node:
        options = ["--kubeconfig", str(server.kubeconfig), "--nrt-file", str(tmp_path / "nrt.json")]
        process = await program(tmp_path, *options, NODE_NAME=server.node)
        await server.until(lambda: bool(server.objects))
        await node.start_pod(pod("own", "2"))
        await server.until(lambda: '"4-5"' in json.dumps(server.topology))
        process.terminate()
        code, said = await ended(process)
        assert code == 0, said
        attributes = {each["name"]: each["value"] for each in server.topology["attributes"]}
        assert attributes["nri-policy/stopped"] == "true"
        assert said.count("event=nrt-published to='the cluster'") == 1
        assert "HTTP Request" not in said, "a line for each would fill the log"
    left = json.loads((tmp_path / "nrt.json").read_text())
    assert {"name": "nri-policy/stopped", "value": "true"} in left["attributes"]
    assert left["metadata"]["name"] == "node-a"


async def test_a_bad_kubeconfig_is_an_error_at_the_start(tmp_path: Path) -> None:
    code, said = await ended(await program(tmp_path, "--kubeconfig", str(tmp_path / "none")))
    assert code == 1
    *_, last = said.splitlines()
    assert last.startswith(f"nri-policy: --kubeconfig {tmp_path}/none: ")
    assert "Traceback" not in said


async def test_without_a_cluster_it_says_so_once_and_goes_on(tmp_path: Path) -> None:
    async with runtime(tmp_path) as node:
        process = await program(tmp_path)
        await node.synchronized()
        process.terminate()
        code, said = await ended(process)
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if "nrt" in line)
    assert " level=info " in line
    assert "no cluster" in line

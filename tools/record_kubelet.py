"""Record what a runtime tells plugins of a real kubelet's pods; our model is held against it.

Plays tests/unit/simulation/kubelet_steps.yaml on a cluster of one node of each release, without the
daemon, and writes kubelet-RELEASE.json beside it. Needs root, and what `tools.control_plane` and
`tools.runtimes` build.

    python -m tools.record_kubelet
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.node import NAME, Node, one_node
from tests.e2e import image, packages
from tests.support.nri_events import described
from tests.unit.simulation.scripted import ScriptedPlugin
from tools.control_plane import RELEASES

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "unit" / "simulation"
STEPS = FOLDER / "kubelet_steps.yaml"
HARDWARE = "package:1 numa:2 core:8"
EVERYTHING = 0x1FFF  # every event but a validation


def main() -> None:
    """Record each release, and write its file."""
    for release in RELEASES:
        folder = Path(tempfile.mkdtemp(prefix="nri-record-"))
        archive = folder / "busybox.tar"
        image.write(packages.busybox(), archive)
        steps = yaml.safe_load(STEPS.read_text())
        try:
            with one_node(folder, archive, hardware=HARDWARE, release=release) as node:
                version, events = asyncio.run(_record(node, steps))
        finally:
            shutil.rmtree(folder)
        lines = ",\n".join(json.dumps(event) for event in events)
        text = f'{{"containerd": "{version}", "events": [\n{lines}\n]}}\n'
        (FOLDER / f"kubelet-{release}.json").write_text(text)


async def _record(node: Node, steps: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return containerd's version, and what it has told a plugin."""
    async with ScriptedPlugin(node.runtime.nri_socket, events=EVERYTHING) as plugin:
        await plugin.saw("Synchronize")
        ((_, configuration),) = [each for each in plugin.seen if each[0] == "Configure"]
        for step in steps:
            await asyncio.to_thread(_play, node, step)
        deleted = [step["delete"] for step in steps if "delete" in step]
        while True:
            events = described(plugin.seen, cgroup_root=node.runtime.cgroup_root)
            if {e["pod"] for e in events if e["event"] == "RemovePodSandbox"} >= {*deleted}:
                return configuration.runtime_version.removeprefix("v"), events
            await asyncio.sleep(0.5)


def _play(node: Node, step: dict[str, Any]) -> None:
    match step:
        case {"start": manifest}:
            node.start(_complete(manifest))
        case {"resize": {"pod": name, "containers": containers}}:
            node.resize(name, containers)
            node.until_resized(name)
        case {"delete": name}:
            node.delete(name)
        case _:
            raise ValueError(f"no such step: {step}")


def _complete(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = {**manifest["spec"], "nodeName": NAME, "terminationGracePeriodSeconds": 1}
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        container["image"] = image.NAME
    return {"apiVersion": "v1", "kind": "Pod", **manifest, "spec": spec}


if __name__ == "__main__":
    main()

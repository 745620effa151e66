"""Time a pod from its creation at the API server to `Running`, with the daemon and without it.

On a cluster of one real node (`tests.cluster.node`) with this host's own CPUs: etcd, API server,
kubelet, containerd, runc. The pods are bound to the node, so that no scheduler takes part. Rounds
with the daemon and without it take turns. Most of the time is the kubelet's, which looks at its
containers once a second. It needs root, and what `python -m tools.control_plane` builds.
"""

from __future__ import annotations

import http.client
import json
import ssl
import statistics
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks.table import Section
from tests.cluster.control_plane import ADMIN, ControlPlane
from tests.cluster.installation import install
from tests.cluster.node import Node, one_node, pod
from tests.e2e import image, packages

ROUNDS = 6
PODS = 20  # of each round
WARMING = 2
SETTINGS = {"reservedResources": {"cpu": "750m"}}
BURSTABLE = {
    "requests": {"cpu": "10m", "memory": "16Mi"},
    "limits": {"cpu": "100m", "memory": "16Mi"},
}


def section() -> Section:
    taken = _measure()
    return Section(
        title="From the pod's object to its running container",
        text=f"A Burstable pod on a real node, in ms: {ROUNDS // 2} rounds of {PODS} pods each.",
        head=("", "p50", "p99"),
        rows=[(name, *_percentiles(seconds)) for name, seconds in taken.items()],
    )


def _percentiles(seconds: list[float]) -> tuple[str, str]:
    hundredths = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{1e3 * hundredths[49]:.0f}", f"{1e3 * hundredths[98]:.0f}"


def _measure() -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"without the daemon": [], "with it": []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        archive = folder / "image.tar"
        image.write(packages.busybox(), archive)
        with one_node(folder, archive) as node:
            install(node.cluster, node.name)
            for at in range(ROUNDS):
                if at % 2:
                    own = folder / f"round-{at}"
                    own.mkdir()
                    with closing(node.daemon(own, SETTINGS)) as daemon:
                        daemon.start()
                        taken["with it"] += _starts(node)
                        daemon.stop()
                else:
                    taken["without the daemon"] += _starts(node)
    return taken


def _starts(node: Node) -> list[float]:
    """Start pods, one after the other; return what each start took in seconds."""
    seconds = []
    for at in range(WARMING + PODS):
        began = time.perf_counter()
        node.create(pod(f"pod-{at}", {"main": BURSTABLE}))
        _until_running(node.cluster, f"pod-{at}")
        seconds.append(time.perf_counter() - began)
    node.clear()
    return seconds[WARMING:]


def _until_running(cluster: ControlPlane, name: str) -> None:
    """Read the API server's events until the pod runs."""
    context = ssl.create_default_context(cafile=str(cluster.folder / "ca.crt"))
    server = urlsplit(cluster.server)
    assert server.hostname is not None
    with closing(
        http.client.HTTPSConnection(server.hostname, server.port, context=context, timeout=60)
    ) as connection:
        path = f"/api/v1/namespaces/default/pods?watch=1&fieldSelector=metadata.name%3D{name}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {ADMIN}"})
        for line in connection.getresponse():
            if json.loads(line)["object"]["status"]["phase"] == "Running":
                return


def main() -> None:
    print(section().plain())

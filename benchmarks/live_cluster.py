"""`cluster run` on a real API server with 5,000 nodes and 100,000 pods.

Nodes, their zones and their pods are put into etcd, past the API server, which reads them as it
does after a restart. There is no scheduler, controller or kubelet. Memory is in MiB, from
/proc; CPU time is that of the whole process.

    python -m tools.control_plane kube-apiserver kubectl
    make bench ARGS='live_cluster --nodes=500 --pods=10000'  # without: 5,000 and 100,000
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from nri_policy.cluster.service.kinds import ZONES
from nri_policy.kube.client import NODES, PODS, Client, decode
from nri_policy.kube.connection import access
from tests.cluster.control_plane import ADMIN, ControlPlane
from tests.cluster.installation import CONFIGS
from tests.support.burst import BurstNode

PATIENCE = 600.0  # seconds
GROUP, GROUPS = 64, 5  # pods of a group, groups
ASKED = (500, 5000)  # nodes of a request: kube-scheduler asks about a tenth of 5,000
REQUESTS = 200
KINDS = 7  # that the service follows
RACK = "example.com/rack"
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
LEASE = "kube-system/nri-policy-cluster"
SETTINGS = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "ClusterPlacement",
    "metadata": {"name": "default"},
    "spec": {"topologies": [{"name": "default", "levels": [ZONE, RACK, HOSTNAME]}]},
}
CREATED = "2026-01-01T00:00:00Z"
ALLOCATABLE = {"cpu": "31", "memory": "128Gi", "pods": "250", "ephemeral-storage": "100Gi"}

Object = dict[str, Any]


def metadata(name: str, number: int, **more: Any) -> Object:
    uid = f"00000000-0000-4000-8000-{number:012}"
    return {"name": name, "uid": uid, "creationTimestamp": CREATED, **more}


def node(number: int) -> Object:
    name = f"n{number:05}"
    labels = {
        HOSTNAME: name,
        ZONE: f"z{number // 1000}",
        RACK: f"r{number // 20:03}",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is"}
    conditions = [
        {"type": kind, "status": "False", "reason": "KubeletHasEnough", "message": "it has enough"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    images = [{"names": [f"registry/image-{at}:v1"], "sizeBytes": 10**8} for at in range(50)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(name, number, labels=labels),
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {**ALLOCATABLE, "cpu": "32"},
            "allocatable": ALLOCATABLE,
            "conditions": [*conditions, ready],
            "addresses": [{"type": "InternalIP", "address": f"10.{number >> 8}.{number & 255}.1"}],
            "images": images,
        },
    }


def pod(number: int, nodes: int) -> Object:
    """A pod of a Deployment that runs; it shares the CPUs of its node."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number % 500}",
             "uid": f"00000000-0000-4000-9000-{number % 500:012}", "controller": True}  # fmt: skip
    resources = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    mount = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    environment = [{"name": f"VARIABLE_{at}", "value": "some value of it"} for at in range(10)]
    container = {
        "name": "c",
        "image": "registry/image-1:v1",
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": resources,
        "volumeMounts": [mount],
        "env": environment,
    }
    name = f"web-{number % 500}-{number}"
    labels = {"app": f"web-{number % 500}", "pod-template-hash": "5d4f8c7b9"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            name, number, namespace="load", labels=labels, ownerReferences=[owner]
        ),
        "spec": {
            "nodeName": f"n{number % nodes:05}",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
            "volumes": [{"name": "token", "emptyDir": {}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "startTime": CREATED,
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": CREATED}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
        },
    }


def objects(nodes: int, pods: int) -> Iterator[tuple[str, Object]]:
    report = BurstNode("n").report()
    kind = "topology.node.k8s.io/noderesourcetopologies"
    for number in range(nodes):
        made = node(number)
        name = made["metadata"]["name"]
        yield f"minions/{name}", made
        meta = metadata(name, number, labels=report["metadata"].get("labels", {}), generation=1)
        yield f"{kind}/{name}", {**report, "metadata": meta}
    for number in range(pods):
        each = pod(number, nodes)
        yield f"pods/load/{each['metadata']['name']}", each


class Replica:
    """A process of the service."""

    def __init__(self, folder: Path, name: str, kubeconfig: Path) -> None:
        settings = folder / "placement.json"
        settings.write_text(json.dumps(SETTINGS))
        arguments = ["--groups", "--port", "0", "--lease", LEASE, "--settings", str(settings)]
        command = [sys.executable, "-m", "nri_policy.cli", "cluster", "run", *arguments]
        self._log = folder / f"{name}.log"
        self.began = time.monotonic()
        with self._log.open("wb") as log:
            command += ["--kubeconfig", str(kubeconfig)]
            self.process = subprocess.Popen(command, stderr=log)

    def port(self) -> int:
        found = re.search(r"event=listening .*port=(\d+)", self._log.read_text())
        return int(found[1]) if found else 0

    def ready(self) -> bool:
        return bool(self.port()) and self.ask("GET", "/readyz")[0] == 200

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def knows(self, kinds: int) -> bool:
        return self._log.read_text().count("event=listed") >= kinds

    def until(self, condition: Any, what: str, seconds: float = PATIENCE) -> float:
        """Wait until *condition*; return after how many seconds."""
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < began + seconds, what
            time.sleep(0.02)
        return time.monotonic() - began

    def cpu(self) -> float:
        """Seconds of CPU that it has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> str:
        """Return its present memory and its peak, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        now, peak = (
            int(re.findall(rf"{name}:\s+(\d+)", status)[0]) >> 10 for name in ("VmRSS", "VmHWM")
        )
        return f"{now} MiB, at most {peak} MiB"


@contextmanager
def replica(folder: Path, name: str, kubeconfig: Path) -> Iterator[Replica]:
    made = Replica(folder, name, kubeconfig)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


async def place(client: Client, name: str) -> tuple[float, float]:
    """Make a group of gated pods; return how long they took to make, and until all may go."""
    annotations = {"placement.nri/group": name, "placement.nri/group-size": str(GROUP),
                   "kueue.x-k8s.io/podset-required-topology": RACK}  # fmt: skip
    resources = {"requests": {"cpu": "4", "memory": "4Gi"}, "limits": {"cpu": "4", "memory": "4Gi"}}
    spec = {
        "containers": [{"name": "c", "image": "x", "resources": resources}],
        "schedulingGates": [{"name": "placement.nri/group"}],
        "restartPolicy": "Never",
    }
    found = await client.list(PODS, namespace="default", fields="metadata.name=none")
    waiting = {f"{name}-{at}" for at in range(GROUP)}
    made = 0.0

    async def create(pod: str) -> None:
        new = {"metadata": {"name": pod, "annotations": annotations}, "spec": spec}
        await client.create(PODS, new, namespace="default")

    async def follow() -> None:
        async for change, item in client.watch(PODS, found.revision, namespace="default"):
            seen = decode(item)
            if change != "BOOKMARK" and not seen["spec"].get("schedulingGates"):
                waiting.discard(seen["metadata"]["name"])
            if not waiting:
                return

    began = time.monotonic()
    following = asyncio.create_task(follow())
    await asyncio.gather(*(create(each) for each in sorted(waiting)))
    made = time.monotonic()
    await asyncio.wait_for(following, PATIENCE)
    return made - began, time.monotonic() - made


def place_some(plane: ControlPlane, service: Replica, prefix: str) -> None:
    async def play() -> None:
        connect = access(plane.kubeconfig(ADMIN))
        assert connect is not None
        client = Client(connect, patience=60)
        before = service.cpu()
        try:
            times = [await place(client, f"{prefix}-{number}") for number in range(GROUPS)]
        finally:
            await client.close()
        made = median(each for each, _ in times)
        opened = sorted(each for _, each in times)
        print(
            f"  a group of {GROUP} pods in a rack: made in {made:.2f} s, then let go within"
            f" {median(opened):.2f} s, at most {opened[-1]:.2f} s;"
            f" CPU {(service.cpu() - before) / GROUPS * 1e3:.0f} ms for each",
            flush=True,
        )

    asyncio.run(play())


def ask_extender(service: Replica, nodes: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port())
    for many in ASKED:
        names = [f"n{at:05}" for at in range(0, nodes, max(1, nodes // many))][:many]
        taken: dict[str, list[float]] = {"filter": [], "prioritize": []}
        for number in range(REQUESTS):
            limits = {"cpu": 1 + number % 8, "memory": "1Gi"}
            spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
            about = {"metadata": {"name": f"p{number}", "namespace": "default"}, "spec": spec}
            body = json.dumps({"Pod": about, "NodeNames": names}).encode()
            for verb, times in taken.items():
                began = time.perf_counter()
                connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                times.append((time.perf_counter() - began) * 1e3)
        text = ", ".join(
            f"{verb} {median(times):.1f} ms (p99 {sorted(times)[-REQUESTS // 100 - 1]:.1f})"
            for verb, times in taken.items()
        )
        print(f"  the extender, about {len(names)} nodes: {text}", flush=True)
    connection.close()


def prepare(plane: ControlPlane, nodes: int, pods: int) -> None:
    crds = [CONFIGS / "kubernetes" / "crd.yaml", *(CONFIGS / "cluster").glob("*-crd.yaml")]
    for crd in crds:
        plane.kubectl("apply", "-f", str(crd))
        plane.kubectl("wait", "--for=condition=Established", "-f", str(crd))
    account = {"metadata": {"name": "default"}}
    plane.asked("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    plane.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "load"}})
    began = time.monotonic()
    plane.store(objects(nodes, pods))
    stored = time.monotonic()
    for kind, number in ((NODES, nodes), (ZONES, nodes), (PODS, pods)):
        path = f"/{kind.path()}?limit=1"

        def there(path: str = path) -> int:
            meta: Object = plane.asked("GET", path, timeout=120)["metadata"]
            return int(meta.get("remainingItemCount", 0)) + 1

        plane.until(lambda number=number, there=there: there() == number, kind.plural, seconds=300)
    print(
        f"{nodes} nodes with reports and {pods} pods: stored in {stored - began:.0f} s,"
        f" served {time.monotonic() - stored:.0f} s later",
        flush=True,
    )


def change_leader(leader: Replica, other: Replica, how: signal.Signals) -> None:
    other.until(lambda: other.knows(KINDS), "the other replica knows all")
    leader.process.send_signal(how)
    taken = other.until(other.ready, "the other replica leads")
    print(f"  {how.name} of the leader: the other one is ready after {taken:.1f} s", flush=True)


def main() -> None:
    options = dict(each[2:].split("=") for each in sys.argv if each.startswith("--"))
    nodes, pods = int(options.get("nodes", 5000)), int(options.get("pods", 100_000))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nri-policy-")))
        plane = stack.enter_context(ControlPlane(folder))
        prepare(plane, nodes, pods)
        kubeconfig = plane.kubeconfig(ADMIN)
        first = stack.enter_context(replica(folder, "first", kubeconfig))
        taken = first.until(first.ready, "the first replica is ready")
        print(
            f"  ready {taken:.1f} s after its start; CPU {first.cpu():.1f} s; {first.memory()}",
            flush=True,
        )
        place_some(plane, first, "first")
        ask_extender(first, nodes)
        began, before = time.monotonic(), first.cpu()
        time.sleep(20)
        share = (first.cpu() - before) / (time.monotonic() - began)
        print(f"  idle: {share:.1%} of a CPU; {first.memory()}", flush=True)
        for how in (signal.SIGKILL, signal.SIGTERM):
            second = stack.enter_context(replica(folder, how.name, kubeconfig))
            change_leader(first, second, how)
            place_some(plane, second, f"after-{how.name.lower()}")
            first = second

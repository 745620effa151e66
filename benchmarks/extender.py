"""The scheduler extender: filter and score of many nodes, preemption, an answer over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nri_policy.cluster.numa.extender import Verbs
from nri_policy.cluster.numa.fit import NumaFit
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.node_preemption import Preemption
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.service.server import Handlers, Listen, make_server
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import NodeZones, Zone, read_zones
from nri_policy.foundation.clock import SYSTEM_CLOCK
from nri_policy.foundation.units import BILLIONTHS
from tests.property import test_numa_fit
from tests.support import numa_fit_twin
from tests.support.zone_reports import zone_report

NODES, ZONES = 5000, 8
CANDIDATES = 100  # for preemption
QUESTIONS = 3000  # over HTTP

Object = dict[str, Any]
RESOURCES = ["cpu", "memory", "vendor.com/nic"]


def zones_of(at: int) -> NodeZones:
    """A node of eight NUMA nodes, none like the next."""
    names = [f"node-{number}" for number in range(ZONES)]
    costs = [{to: 10 if to == name else 21 for to in names} for name in names]
    total = {"cpu": 16 * BILLIONTHS, "memory": 2**36 * BILLIONTHS, "vendor.com/nic": 2 * BILLIONTHS}
    return NodeZones(
        f"n{at}",
        tuple(
            Zone(
                name,
                "Node",
                costs=costs[number],
                total=total,
                free={
                    "cpu": (at * 7 + number * 3) % 17 * BILLIONTHS,
                    "memory": (at + number) % 64 * 2**30 * BILLIONTHS,
                    "vendor.com/nic": (at + number) % 3 * BILLIONTHS,
                },
            )
            for number, name in enumerate(names)
        ),
        attributes=(
            ("topologyManagerPolicy", "single-numa-node"),
            ("topologyManagerScope", "container"),
            ("topologyManagerMaxNUMANodes", "8"),
        ),
    )


def pod(name: str, cpus: int) -> Object:
    limits = {"cpu": cpus, "memory": "8Gi", "vendor.com/nic": 1}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return {"metadata": {"name": name}, "spec": {"containers": containers}}


def milliseconds(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Median and 99th percentile of a CPU's time: others on the machine do not count."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e3)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def kernel() -> None:
    asked = read_pod(pod("p", 4), "")
    for strategy in ("LeastAllocated", "BalancedAllocation", "LeastNUMANodes"):
        fits = NumaFit(Extender(strategy=strategy))
        for at in range(NODES):
            fits.put(f"n{at}", fits.reader.read(RESOURCES, zones_of(at), stale=False)[0])
        one = fits.get("n0")
        assert one is not None

        def cold(fits: NumaFit = fits) -> None:
            fits._answers.clear()  # noqa: SLF001 - as it is for a pod like no other
            fits.ask(fits.request(asked))

        def warm(fits: NumaFit = fits, one: Any = one) -> None:
            fits.put("n0", one)
            fits.ask(fits.request(asked))

        first, again = milliseconds(cold, 200), milliseconds(warm, 500)
        plain = [test_numa_fit.twin_node(RESOURCES, zones_of(at), stale=False) for at in range(200)]
        same = test_numa_fit.twin_pod(asked.spec, strict=False)

        def twin(plain: Any = plain, same: Any = same, strategy: str = strategy) -> None:
            for each in plain:
                numa_fit_twin.fit(each, same)
                numa_fit_twin.score(each, same, strategy, {})

        slow = milliseconds(twin, 2)[0] * NODES / len(plain)
        print(
            f"{strategy:20} {NODES} nodes of {ZONES} zones: {first[0]:.2f} ms (p99 {first[1]:.2f}),"
            f" one node changed {again[0] * 1e3:.0f} µs, plain Python {slow / first[0]:.0f} times"
        )


def preemption() -> None:
    """Time preemption on nodes where the proposed victims are in two zones, so more must leave."""
    cluster, pods = Cluster(), NodePods()
    zones = LiveZones(Extender(), cluster.view, SYSTEM_CLOCK)
    cluster.follow(zones)
    proposed = {}
    for name in (f"n{at}" for at in range(CANDIDATES)):
        allocatable = {"cpu": 32, "memory": "256Gi", "pods": 110}
        made = {"metadata": {"name": name}, "status": {"allocatable": allocatable}}
        cluster.set_node(read_node(made, ""))
        cluster.set_zones(read_zones(zone_report(name, 0, 0, cpus=16, memory="128Gi"), ""))
        for at in range(8):
            document = guaranteed(f"{name}-{at}", 4)
            document["metadata"]["annotations"] = {"placement.nri/zone": f"node-{at % 2}"}
            document["spec"]["nodeName"] = name
            each = read_pod(document | {"status": {"phase": "Running"}}, "")
            zones.set_pod(each)
            pods.set_pod(each)
        proposed[name] = ({f"u-{name}-0", f"u-{name}-1"}, 0)
    document = guaranteed("x", 8)
    document["spec"]["priority"] = 1
    asked, chosen, taken = read_pod(document, ""), Preemption(zones, pods), []
    found = chosen.choose(asked, proposed)
    for _ in range(30):
        began = time.process_time()
        found = chosen.choose(asked, proposed)
        taken.append((time.process_time() - began) * 1e3)
    assert all(len(each.pods) == 2 for each in found.values())
    print(
        f"preempt verb, {len(found)} candidate nodes of 8 pods: {statistics.median(taken):.1f} ms"
        " of CPU"
    )


def guaranteed(name: str, cpu: int) -> Object:
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"containers": [container]}}


def over_http() -> None:
    cluster = Cluster()
    zones = LiveZones(Extender(), cluster.view, SYSTEM_CLOCK)
    cluster.follow(zones)
    for at in range(NODES):
        node = {
            "metadata": {"name": f"n{at}"},
            "status": {"allocatable": dict.fromkeys(RESOURCES, 9)},
        }
        cluster.set_node(read_node(node, ""))
        cluster.set_zones(zones_of(at))
    verbs = Verbs(zones, ServiceSpread(cluster.view, SYSTEM_CLOCK))

    async def answer(body: bytes) -> bytes:
        return verbs.filter(body)

    answers = Handlers(verbs={"filter": answer}, ready=str, metrics=bytes, count=lambda *_: None)
    http = make_server(Listen(port=0), answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # in a process of its own, as in a cluster, where kube-scheduler asks over HTTP
        child = get_context("fork").Process(target=lambda: asyncio.run(http.serve([listener])))
        child.start()
        client = socket.create_connection(listener.getsockname())
        numbers = itertools.count()

        def busy() -> float:
            return int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e6

        def ask() -> None:
            at = next(numbers)
            names = [f"n{(at + step) % NODES}" for step in range(1000)]
            body = json.dumps({"Pod": pod(f"p{at}", 1 + at % 8), "NodeNames": names}).encode()
            head = "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            before, began = busy(), time.perf_counter()
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            received = b""
            while not received.endswith(b'"Error":""}'):
                received += client.recv(1 << 20)
            taken.append((time.perf_counter() - began) * 1e3)
            own.append(busy() - before)

        taken: list[float] = []
        own: list[float] = []  # of the server's CPU
        for _ in range(QUESTIONS):
            ask()
        client.close()
        child.terminate()
        child.join()
    for what, values in (
        ("until it is there", taken[QUESTIONS // 6 :]),
        ("of the server's CPU", own[QUESTIONS // 6 :]),
    ):
        p50, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        print(f"an answer over HTTP for 1000 names, {what}: median {p50:.2f} ms, p99 {p99:.2f} ms")


def main() -> None:
    kernel()
    preemption()
    over_http()

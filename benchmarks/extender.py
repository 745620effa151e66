"""The scheduler extender: filter and score of many nodes, an answer over HTTP, and a burst of pods.

The burst is played with node daemons that decide for real: each node is an engine with
`alignment: numa`, its report the object that the daemon publishes. Time in it is made up: the
scheduler takes pods one after the other, a node hears of a pod and reports it some time later.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import random
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.extender import Verbs
from nri_policy.cluster.node import read_node
from nri_policy.cluster.numa_fit import NumaFit
from nri_policy.cluster.pod import read_pod
from nri_policy.cluster.promises import LiveZones
from nri_policy.cluster.server import Answers, Listen, server
from nri_policy.cluster.service_spread import ServiceSpread
from nri_policy.cluster.settings import Extender
from nri_policy.cluster.zone import NodeZones, Zone, read_zones
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.engine.shortage import PlacementError
from nri_policy.node import view_of
from nri_policy.nrt.reading import Reading
from nri_policy.nrt.zones import measure
from nri_policy.units import BILLIONTHS
from nri_policy.workload.pod import Container
from tests.property import test_numa_fit
from tests.support import nodes, numa_fit_twin

NODES, ZONES = 5000, 8
BURST_NODES, BURST_PODS = 50, 500
MACHINE = "package:2 numa:2 core:4 pu:2"  # 4 NUMA nodes of 8 CPUs
TAKES, HEARS, REPORTS, AGAIN = 0.005, 0.1, 0.25, 1.0  # seconds, made up
MOST_TRIES = 20

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


def over_http() -> None:
    zones = LiveZones(Extender(), time.monotonic)
    for at in range(NODES):
        node = {
            "metadata": {"name": f"n{at}"},
            "status": {"allocatable": dict.fromkeys(RESOURCES, 9)},
        }
        zones.set_node(read_node(node, ""))
        zones.set_zones(zones_of(at))
    verbs = Verbs(zones, ServiceSpread(time.monotonic), choose=False)

    async def answer(body: bytes) -> bytes:
        return verbs.filter(body)

    answers = Answers(verbs={"filter": answer}, ready=str, metrics=bytes, count=lambda *_: None)
    http = server(Listen(port=0), answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # a process of its own, as it is in a cluster: it shares no interpreter with who asks
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
        for _ in range(3000):
            ask()
        client.close()
        child.terminate()
        child.join()
    for what, values in (("until it is there", taken[500:]), ("of the server's CPU", own[500:])):
        p50, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        print(f"an answer over HTTP for 1000 names, {what}: median {p50:.2f} ms, p99 {p99:.2f} ms")


class Host:
    """A node with its daemon."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.engine = Engine(nodes.machine(MACHINE), nodes.settings(alignment="numa"))
        self.pods: list[tuple[str, str]] = []
        self.left = 32 - 1  # CPUs that kube-scheduler thinks are left

    def decide(self, name: str, cpus: int) -> bool:
        made: Container = nodes.container(1000 * cpus)
        made = replace(made, resources=replace(made.resources, memory_limit=1 << 20))
        try:
            self.engine.handle(Created(container=made))
        except PlacementError:
            return False
        self.pods.append(("default", name))
        return True

    def report(self) -> NodeZones:
        reading = Reading(
            node=self.name,
            layout=self.engine.layout,
            amounts=measure(view_of(self.engine)),
            devices={},
            pods=frozenset(self.pods),
            generation=0,
        )
        return read_zones(reading.object(), "")


class Burst:
    """Pods that come one after the other, faster than nodes report them."""

    def __init__(self, *, extender: bool) -> None:
        chance = random.Random(1)
        self.extender = extender
        self.now = 0.0
        self.zones = LiveZones(Extender(choose=True), lambda: self.now)
        self.verbs = Verbs(self.zones, ServiceSpread(lambda: self.now), choose=True)
        self.hosts = {f"n{at:02}": Host(f"n{at:02}") for at in range(BURST_NODES)}
        for host in self.hosts.values():
            allocatable = {"cpu": 31, "memory": "64Gi"}
            node = {"metadata": {"name": host.name}, "status": {"allocatable": allocatable}}
            self.zones.set_node(read_node(node, ""))
            self.zones.set_zones(host.report())
        self.cpus = {f"p{at:03}": chance.choice((1, 2, 3, 4)) for at in range(BURST_PODS)}
        self.tries: Counter[str] = Counter()
        self.outcome: Counter[str] = Counter()
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[[str, str], None], str, str]] = []

    def play(self) -> Counter[str]:
        """Return how many pods were placed, refused by their node, and found no node."""
        for number, name in enumerate(self.cpus):
            self.plan(number * TAKES, self.schedule, name)
        while self.events:
            self.now, _, happens, name, at = heapq.heappop(self.events)
            happens(name, at)
        return self.outcome

    def plan(self, after: float, what: Callable[[str, str], None], name: str, at: str = "") -> None:
        heapq.heappush(self.events, (self.now + after, next(self.order), what, name, at))

    def again(self, name: str) -> None:
        if self.tries[name] < MOST_TRIES:
            self.plan(AGAIN, self.schedule, name)
        else:
            self.outcome["given up"] += 1

    def schedule(self, name: str, _at: str) -> None:
        self.tries[name] += 1
        room = sorted(
            (host.name for host in self.hosts.values() if host.left >= self.cpus[name]),
            key=lambda each: (-self.hosts[each].left, each),
        )
        if self.extender:
            body = json.dumps({"Pod": self.pod(name), "NodeNames": room}).encode()
            room = json.loads(self.verbs.filter(body))["NodeNames"]
        if room:
            self.hosts[room[0]].left -= self.cpus[name]
            self.plan(TAKES, self.bind, name, room[0])
        else:
            self.outcome["waits for room"] += 1
            self.again(name)

    def bind(self, name: str, at: str) -> None:
        self.zones.set_pod(read_pod(self.pod(name, at), ""))
        self.plan(HEARS, self.decide, name, at)

    def decide(self, name: str, at: str) -> None:
        if self.hosts[at].decide(name, self.cpus[name]):
            self.outcome["placed"] += 1
            self.plan(REPORTS, self.report, "", at)
        else:  # its owner makes it anew
            self.outcome["refusals by a node"] += 1
            self.hosts[at].left += self.cpus[name]
            self.zones.remove_pod("default", name)
            self.again(name)

    def report(self, _name: str, at: str) -> None:
        self.zones.set_zones(self.hosts[at].report())

    def pod(self, name: str, at: str = "") -> Object:
        limits = {"cpu": self.cpus[name], "memory": 1 << 20}
        containers = [{"name": "c", "resources": {"limits": limits}}]
        metadata = {"name": name, "namespace": "default"}
        return {"metadata": metadata, "spec": {"nodeName": at, "containers": containers}}


def main() -> None:
    kernel()
    over_http()
    for extender in (True, False):
        found = Burst(extender=extender).play()
        text = ", ".join(f"{number} {what}" for what, number in found.items())
        print(
            f"{BURST_PODS} pods on {BURST_NODES} nodes, {'with' if extender else 'without'}: {text}"
        )


if __name__ == "__main__":
    main()

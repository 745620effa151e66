"""The extender on the wire, as kube-scheduler and others ask it; and what it learns meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import ClusterSettings, Extender, Topology
from nri_policy.cluster.service import server as serving
from nri_policy.cluster.service.kinds import OF_EXTENDER
from nri_policy.cluster.service.lease import LASTS, Lease, LeaseName
from nri_policy.cluster.service.server import Handlers, Listen, make_server
from nri_policy.cluster.service.service import Service
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.support.certificates import client_context, write_certificates
from tests.support.clock import SleepingClock
from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS

Object = dict[str, Any]
ZONES = "noderesourcetopologies"


def node(name: str) -> Object:
    status = {
        "allocatable": {"cpu": 16, "memory": 16, "pods": 110, "a.com/gpu": 1},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name}, "status": status}


def zones(name: str, *cpus: int) -> Object:
    return {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": each, "capacity": 8, "allocatable": 8, "available": free}
                    for each in ("cpu", "memory")
                ],
            }
            for number, free in enumerate(cpus)
        ],
    }


def pod(name: str, cpu: int, *, at: str = "") -> Object:
    limits = {"cpu": cpu, "memory": 1}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": at, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def asking(cpu: int, *names: str, name: str = "p") -> Object:
    """What kube-scheduler sends with `nodeCacheCapable`."""
    return {"Pod": pod(name, cpu), "Nodes": None, "NodeNames": list(names)}


class Scheduler:
    """A client as kube-scheduler is: one connection for all requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(
        self, path: str, body: bytes, *, method: str = "POST", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(
            line.lower().split(": ", 1) for line in head.strip().split("\r\n")[1:] if ": " in line
        )
        body = await self.reader.readexactly(int(lines["content-length"]))
        return int(head.split()[1]), body

    async def ask(self, path: str, document: object) -> Any:
        status, body = await self.send(path, json.dumps(document).encode())
        assert status == 200, body
        return json.loads(body)

    async def get(self, path: str) -> tuple[int, str]:
        status, body = await self.send(path, b"", method="GET")
        return status, body.decode()


class Replica:
    """A service and its server."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.port = service, port
        self._clients: list[Scheduler] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> Scheduler:
        opened = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self._clients.append(Scheduler(*opened))
        return self._clients[-1]

    async def hang_up(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()
        await asyncio.gather(
            *(client.writer.wait_closed() for client in self._clients), return_exceptions=True
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANGS):
            while not condition():  # noqa: ASYNC110 - who watches says nothing
                await asyncio.sleep(0.005)


@asynccontextmanager
async def replica(
    api: ClusterAPI,
    *,
    ready: bool = True,
    listen: Listen | None = None,
    lease: LeaseName | None = None,
    now: Callable[[], float] = time.monotonic,
    groups: bool = False,
    kueue: bool = False,
    **extender: Any,
) -> AsyncIterator[Replica]:
    connect = access(api.kubeconfig)
    assert connect is not None
    client = Client(connect)
    settings = ClusterSettings(
        topologies=[Topology(levels=[HOSTNAME])], extender=Extender(**extender)
    )
    clock = SleepingClock(now=now, sleep=lambda seconds: asyncio.sleep(min(seconds, 0.01)))
    service = Service(settings, client, lease, clock, groups=groups, kueue=kueue)
    http = make_server(listen or Listen(port=0), service.answers())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tasks = [
            asyncio.create_task(http.serve([listener])),
            asyncio.create_task(service.run()),
        ]
        found = Replica(service, listener.getsockname()[1])
        try:
            if ready:
                await found.until(lambda: not service.watch.problem(*OF_EXTENDER))
            yield found
        finally:
            await found.hang_up()
            http.should_exit = True
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()


async def stopped(lease: Lease) -> None:
    """Have a replica renew its Lease no more, once nothing is on its way."""
    idle = asyncio.Event()

    async def stop(_seconds: float) -> None:
        idle.set()
        await asyncio.Event().wait()

    lease._clock = replace(lease._clock, sleep=stop)
    await idle.wait()


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterAPI]:
    """Three nodes: a is full, b has room in one zone, c could never hold eight CPUs."""
    async with ClusterAPI(tmp_path) as api:
        for name, free in (("a", (1, 1)), ("b", (1, 6)), ("c", (8, 8))):
            await api.put("nodes", node(name))
            await api.put(ZONES, zones(name, *free))
        yield api


def test_filter_and_prioritize(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            assert await scheduler.ask("/filter", asking(4, "a", "b", "c", "new")) == {
                "Nodes": None,
                "NodeNames": ["b", "c", "new"],
                "FailedNodes": {"a": "cannot align container"},
                "FailedAndUnresolvableNodes": {},
                "Error": "",
            }
            assert await scheduler.ask("/prioritize", asking(4, "b", "c", "new")) == [
                {"Host": "b", "Score": 6},
                {"Host": "c", "Score": 7},
                {"Host": "new", "Score": 0},
            ]
            found = await scheduler.ask("/filter", asking(9, "a", "c"))
            assert found["NodeNames"] == []
            assert found["FailedAndUnresolvableNodes"].keys() == {"a", "c"}
            status, text = await scheduler.get("/metrics")
            assert status == 200
            assert 'nri_policy_cluster_requests_total{status="200",verb="filter"} 2.0' in text
            assert "nri_policy_cluster_unknown_nodes_total 1.0" in text
            rejected = 'nri_policy_cluster_rejected_nodes_total{reason="cannot align container"}'
            assert f"{rejected} 3.0" in text

    asyncio.run(play())


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({"pod": pod("p", 1), "nodenames": ["c"]}, ["c"]),
        ({"POD": pod("p", 1), "NODES": None, "NODENAMES": ["c"]}, ["c"]),
        ({"Pod": pod("p", 1), "Nodes": None, "NodeNames": None}, []),
        ({"Pod": pod("p", 1)}, []),
        ({"Pod": {"metadata": {"name": "p"}, "spec": {"containers": None}}, "NodeNames": ["a"]},
         ["a"]),
    ],
)  # fmt: skip
def test_keys_come_in_any_case_and_lists_may_be_null(
    tmp_path: Path, document: Object, names: list[str]
) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            assert (await scheduler.ask("/filter", document))["NodeNames"] == names
            assert [each["Host"] for each in await scheduler.ask("/prioritize", document)] == names

    asyncio.run(play())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "is not an object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"Pod": 3}', "Pod: expected a map"),
        (b'{"NodeNames": ["a"]}', "Pod: "),
        (json.dumps({"Pod": pod("p", 1), "NodeNames": [1]}).encode(), "not a list of names"),
        (json.dumps({"Pod": pod("p", 1), "Nodes": {"items": []}}).encode(), "nodeCacheCapable"),
        (json.dumps(asking(1)).replace("1, ", '"x", ').encode(), "Pod.spec.containers[0]"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nobody_else_disturbed(
    tmp_path: Path, body: bytes, text: str
) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            status, answer = await scheduler.send("/filter", body)
            assert status == 400
            assert text in json.loads(answer)["Error"]
            assert (await scheduler.ask("/filter", asking(1, "a")))["NodeNames"] == ["a"]

    asyncio.run(play())


def test_other_methods_paths_and_content_types_are_refused(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            assert (await scheduler.get("/filter"))[0] == 405
            assert (await scheduler.get("/other"))[0] == 404
            assert (await scheduler.send("/filter", b"{}", kind="text/plain"))[0] == 415
            charset = "application/json; charset=utf-8"
            body = json.dumps(asking(1, "a")).encode()
            assert (await scheduler.send("/filter", body, kind=charset))[0] == 200

    asyncio.run(play())


def test_large_half_and_slow_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "BODY_SECONDS", 600.0)  # also for a machine that is slow
    monkeypatch.setattr(serving, "MAX_BODY", 3 << 20)

    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            many = [f"node-{number:010}" for number in range(100_000)]  # 2 MB
            assert len((await scheduler.ask("/filter", asking(1, *many)))["NodeNames"]) == 100_000
            head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            half = await at.connect()
            half.writer.write(head + b"Content-Length: 100\r\n\r\n{")
            await half.writer.drain()
            half.writer.close()
            slow = await at.connect()
            with monkeypatch.context() as patch:
                patch.setattr(serving, "BODY_SECONDS", 0.01)
                slow.writer.write(head + b"Content-Length: 100\r\n\r\n{")
                assert (await slow.answer())[0] == 408
            assert await slow.reader.read() == b""  # and the connection ends
            assert (await (await at.connect()).send("/filter", bytes(4 << 20)))[0] == 413
            assert (await scheduler.ask("/filter", asking(1, "a")))["NodeNames"] == ["a"]

    asyncio.run(play())


def test_an_answer_is_one_write_on_a_connection_that_is_kept(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", at.port)) as client:
                client.setblocking(False)
                body = json.dumps(asking(1, "a", "b")).encode()
                head = "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                for _ in range(20):
                    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
                    await loop.sock_sendall(client, request)
                    answer = await loop.sock_recv(client, 65536)
                    assert answer.endswith(b'"Error":""}')

    asyncio.run(play())


def test_a_choice_is_remembered(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api, choose=True) as at:
            scheduler = await at.connect()
            first = await scheduler.ask("/filter", asking(6, "a", "b", "c", name="p"))
            assert first["NodeNames"] == ["c"]
            assert first["FailedNodes"]["b"] == "another node was chosen"
            again = await scheduler.ask("/filter", asking(6, "a", "b", "c", name="p"))
            assert again["NodeNames"] == ["c"]
            second = await scheduler.ask("/filter", asking(6, "a", "b", "c", name="q"))
            assert second["NodeNames"] == ["c"]  # in its other zone
            third = await scheduler.ask("/filter", asking(6, "a", "b", "c", name="r"))
            assert third["NodeNames"] == ["b"]
            fourth = await scheduler.ask("/filter", asking(6, "a", "b", "c", name="s"))
            assert fourth["NodeNames"] == []
            assert "nri_policy_cluster_promises 3.0" in (await scheduler.get("/metrics"))[1]
            await api.put("pods", pod("p", 6, at="b"))
            await at.until(lambda: at.service.zones.promises["default", "p"].bound)
            assert at.service.zones.promises["default", "p"].node == "b"

    asyncio.run(play())


def test_a_place_stays_promised_where_nobody_knows_whether_its_pod_was_bound(
    tmp_path: Path,
) -> None:
    def cut(_method: str, path: str) -> int:
        if path.endswith("/binding"):
            raise ConnectionResetError
        return 0

    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            await api.put("pods", pod("p", 6))
            scheduler = await at.connect()
            asked = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "b"}
            api.refuse = cut
            assert (await scheduler.ask("/bind", asked))["Error"]
            assert at.service.zones.promises["default", "p"].zone == 1
            api.refuse = lambda _method, path: 403 * path.endswith("/binding")
            assert (await scheduler.ask("/bind", asked))["Error"]
            assert not at.service.zones.promises

    asyncio.run(play())


def test_bind_binds_with_the_zone(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            await api.put("pods", pod("p", 6))
            scheduler = await at.connect()
            asked = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "b"}
            assert await scheduler.ask("/bind", asked) == {"Error": ""}
            (binding,) = api.bindings
            assert binding["metadata"]["annotations"] == {"placement.nri/zone": "node-1"}
            assert binding["metadata"]["uid"] == "uid-p"
            assert binding["target"]["name"] == "b"
            assert "already assigned" in (await scheduler.ask("/bind", asked))["Error"]
            await at.until(lambda: at.service.zones.promises["default", "p"].bound)
            await api.put("pods", pod("large", 12))
            large = asked | {"PodName": "large", "PodUID": "uid-large"}
            refused = {"Error": "node b: cannot align container"}
            assert await scheduler.ask("/bind", large) == refused
            assert len(api.bindings) == 1
            gone = asked | {"PodName": "gone"}
            assert "not found" in (await scheduler.ask("/bind", gone))["Error"]
            status, answer = await scheduler.send("/bind", b'{"PodName": "p"}')
            assert status == 400
            assert "PodNamespace" in json.loads(answer)["Error"]
            assert at.service.zones.promises.keys() == {("default", "p")}

    asyncio.run(play())


def test_preempt_knows_pods_and_budgets_of_the_cluster(tmp_path: Path) -> None:
    """Of the two pods in a zone that is full, one has to leave: not the one of the budget."""

    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await api.put("nodes", node("n"))
            await api.put(ZONES, zones("n", 0, 0))
            for name in ("a", "b"):
                made = pod(name, 4, at="n")
                made["metadata"] |= {"uid": f"u-{name}", "labels": {"app": name}}
                made["metadata"]["annotations"] = {"placement.nri/zone": "node-0"}
                await api.put("pods", made | {"status": {"phase": "Running"}})
            budget = {
                "metadata": {"name": "b", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "b"}}},
                "status": {"disruptionsAllowed": 0},
            }
            await api.put("poddisruptionbudgets", budget)
            async with replica(api) as at:
                await at.until(lambda: bool(at.service.verbs.pods.budgets()))
                asked = pod("x", 4)
                asked["spec"]["priority"] = 1
                body = {"Pod": asked, "NodeNameToMetaVictims": {"n": {"Pods": []}}}
                found = await (await at.connect()).ask("/preempt", body)
                victims = {"Pods": [{"UID": "u-a"}], "NumPDBViolations": 0}
                assert found["NodeNameToMetaVictims"] == {"n": victims}
                await api.delete("poddisruptionbudgets", "default/b")
                await at.until(lambda: not at.service.verbs.pods.budgets())

    asyncio.run(play())


def test_it_is_ready_when_all_is_listed(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api:
            api.refuse = lambda _method, path: 500 if path.endswith("/pods") else 0
            async with replica(api, ready=False) as at:
                scheduler = await at.connect()
                await at.until(
                    lambda: at.service.watch.problem(*OF_EXTENDER) == "pods are not listed yet"
                )
                assert await scheduler.get("/readyz") == (503, "pods are not listed yet\n")
                assert (await scheduler.get("/livez"))[0] == 200
                assert (await scheduler.send("/filter", b"{}"))[0] == 503
                api.refuse = lambda _method, _path: 0
                await at.until(lambda: not at.service.watch.problem(*OF_EXTENDER))
                assert await scheduler.get("/readyz") == (200, "ok\n")

    asyncio.run(play())


def test_changes_are_followed_through_cuts_and_lost_histories(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()

            async def fitting() -> list[str]:
                found: list[str] = (await scheduler.ask("/filter", asking(4, "a", "b", "c")))[
                    "NodeNames"
                ]
                return found

            async def until(names: list[str]) -> None:
                async with asyncio.timeout(HANGS):
                    while await fitting() != names:  # noqa: ASYNC110 - as above
                        await asyncio.sleep(0.01)

            assert await fitting() == ["b", "c"]
            await api.put(ZONES, zones("a", 8, 8))
            await until(["a", "b", "c"])
            await api.cut()
            await api.put(ZONES, zones("b", 1, 1))
            await until(["a", "c"])
            api.forget()
            await api.put(ZONES, zones("c", 1, 1))
            await until(["a"])
            await api.stop()
            del api.objects[ZONES]["a"]  # while nobody looks
            await api.put(ZONES, {"metadata": {"name": "b"}, "zones": 3})
            await at.until(lambda: len(at.service.watch.lost_seconds()) == 6)
            assert await fitting() == ["a"]  # for a while what was known counts
            await api.start()
            await at.until(lambda: not at.service.watch.lost_seconds())
            assert await fitting() == ["a"]  # nothing is known of a; b makes no sense, c is full
            found = await scheduler.ask("/filter", asking(4, "b"))
            assert found["FailedNodes"] == {"b": "invalid node topology data"}
            text = (await scheduler.get("/metrics"))[1]
            assert 'unreadable_objects_total{kind="noderesourcetopologies"}' in text

    asyncio.run(play())


def test_what_is_too_old_is_said_and_not_used(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()
            await api.stop()
            await at.until(lambda: len(at.service.watch.lost_seconds()) == 6)
            assert (await scheduler.get("/readyz"))[0] == 200
            clock = at.service.watch._clock
            at.service.watch._clock = replace(clock, now=lambda: clock.now() + 60)
            status, text = await scheduler.get("/readyz")
            assert status == 503
            assert "nodes are not followed for 6" in text
            assert (await scheduler.send("/filter", json.dumps(asking(1)).encode()))[0] == 503

    asyncio.run(play())


def test_objects_come_in_pages(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api:
            for number in range(1100):
                api.objects["pods"][f"default/p{number}"] = pod(f"p{number}", 1)
            async with replica(api):
                pages = [query for _, path, query in api.requests if path == "/api/v1/pods"]
                assert [each.get("continue") for each in pages[:3]] == [None, "500", "1000"]

    asyncio.run(play())


def test_what_no_page_of_a_new_list_has_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.kube.client.PAGE", 3)

    async def play() -> None:
        async with cluster(tmp_path) as api:
            for number in range(8):
                item = pod(f"p{number}", 1)
                item["spec"]["nodeName"] = "a"
                api.objects["pods"][f"default/p{number}"] = item
            async with replica(api) as at:
                known = {*at.service.zones.pods()}
                assert len(known) == 8
                del api.objects["pods"]["default/p7"]  # nobody is told
                api.forget()
                await api.put("nodes", api.objects["nodes"]["b"])  # ends all watches
                await at.until(lambda: ("default", "p7") not in at.service.zones.pods())
                assert {*at.service.zones.pods()} == known - {("default", "p7")}

    asyncio.run(play())


class Failover:
    """Two replicas, and a scheduler that asks whichever is ready, as a Service lets it."""

    def __init__(self, api: ClusterAPI, *replicas: Replica) -> None:
        self.api, self.replicas = api, list(replicas)

    async def leader(self) -> Scheduler:
        async with asyncio.timeout(HANGS):
            while True:
                ready = [each for each in self.replicas if not each.service.problem()]
                assert len(ready) <= 1
                if ready:
                    return await ready[0].connect()
                await asyncio.sleep(0.005)

    async def bind(self, pods: list[str], names: list[str]) -> None:
        scheduler = await self.leader()
        for name in pods:
            found = await scheduler.ask("/filter", asking(4, *names, name=name))
            (chosen,) = found["NodeNames"]
            asked = {"PodName": name, "PodNamespace": "default", "PodUID": "u", "Node": chosen}
            assert await scheduler.ask("/bind", asked) == {"Error": ""}


@pytest.mark.parametrize("graceful", [True, False])
def test_another_replica_goes_on_in_a_burst(tmp_path: Path, *, graceful: bool) -> None:
    """It knows by the bindings what was promised; what was only chosen is asked again."""
    offset = 0.0

    def now() -> float:
        return time.monotonic() + offset

    async def play() -> None:
        nonlocal offset
        async with cluster(tmp_path) as api:
            names = [f"m{number}" for number in range(4)]
            for name in names:
                await api.put("nodes", node(name))
                await api.put(ZONES, zones(name, 4, 4))
            pods = [f"p{number}" for number in range(8)]
            for name in pods:
                await api.put("pods", pod(name, 4))
            options: Object = {"choose": True, "ready": False, "now": now}
            one, two = (LeaseName("kube-system", "x", name) for name in ("one", "two"))
            async with replica(api, lease=two, **options) as second:
                lease = second.service.lease
                assert lease is not None
                await second.until(lambda: lease.leading)
                async with replica(api, lease=one, **options) as first:
                    both = Failover(api, first, second)
                    await both.bind(pods[:2], names)
                    follower = await first.connect()
                    await first.until(lambda: first.service.problem() == "two leads")
                    assert await follower.get("/readyz") == (503, "two leads\n")
                    assert (await follower.send("/filter", b"{}"))[0] == 503
                    both.replicas.remove(second)
                    await stopped(lease)
                    if graceful:
                        await lease.release()
                    offset += 0 if graceful else LASTS
                    await both.bind(pods[2:], names)
                    text = (await follower.get("/metrics"))[1]
                    assert "nri_policy_cluster_leader 1.0" in text
                    assert second.service.problem()
            zones_of = {
                name: sorted(
                    each["metadata"]["annotations"]["placement.nri/zone"]
                    for each in api.bindings
                    if each["target"]["name"] == name
                )
                for name in names
            }
            assert [*zones_of.values()] == 4 * [["node-0", "node-1"]]

    asyncio.run(play())


def test_clients_show_certificates_where_that_is_asked(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    pem, ca = tmp_path / "server.pem", tmp_path / "ca.crt"

    async def play() -> None:
        listen = Listen(port=0, certificate=pem, key=pem, client_ca=ca)
        async with cluster(tmp_path) as api, replica(api, listen=listen) as at:
            context = client_context(ca)
            stranger = await at.connect(context)
            assert (await stranger.send("/filter", json.dumps(asking(1)).encode()))[0] == 403
            assert (await stranger.get("/readyz"))[0] == 200
            context.load_cert_chain(pem)
            known = await at.connect(context)
            assert (await known.ask("/filter", asking(1, "c")))["NodeNames"] == ["c"]

    asyncio.run(play())


@asynccontextmanager
async def following_certificates(listen: Listen) -> AsyncIterator[tuple[int, asyncio.Semaphore]]:
    """Yield the port of a server, and what has it look whether its certificates are renewed."""
    http = make_server(listen, Handlers(verbs={}, ready=str, metrics=bytes, count=lambda *_: None))
    looks = asyncio.Semaphore(0)

    async def look(_seconds: float) -> None:
        await looks.acquire()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = asyncio.create_task(http.serve([listener]))
        following = asyncio.create_task(http.follow_certificate(SleepingClock(sleep=look)))
        yield listener.getsockname()[1], looks
        following.cancel()
        http.should_exit = True
        await answering


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    """As of a mounted Secret, whose files are links into a folder that is replaced."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_certificates(tmp_path / name)
    (tmp_path / "now").symlink_to("old")
    pem = tmp_path / "now" / "server.pem"

    async def trusts(port: int, name: str) -> bool:
        context = client_context(tmp_path / name / "ca.crt")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        return True

    async def play() -> None:
        listen = Listen(port=0, certificate=pem, key=pem)
        async with following_certificates(listen) as (port, looks):
            assert await trusts(port, "old")
            pem_of_nobody = tmp_path / "half"
            pem_of_nobody.mkdir()
            (pem_of_nobody / "server.pem").write_text("half written")
            for name, known in (("half", "old"), ("new", "new")):
                (tmp_path / "link").symlink_to(name)
                (tmp_path / "link").rename(tmp_path / "now")
                for _ in range(8):  # two files, each seen at rest first
                    looks.release()
                    await asyncio.sleep(0.02)
                async with asyncio.timeout(HANGS):
                    while not await trusts(port, known):
                        looks.release()
                        await asyncio.sleep(0.01)
            assert not await trusts(port, "old")

    asyncio.run(play())


def test_clients_of_a_renewed_authority_are_known(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_certificates(tmp_path / name)
    pem, ca = tmp_path / "old" / "server.pem", tmp_path / "ca.crt"
    ca.write_bytes((tmp_path / "old" / "ca.crt").read_bytes())

    async def knows(port: int, name: str) -> bool:
        context = client_context(tmp_path / "old" / "ca.crt")
        context.load_cert_chain(tmp_path / name / "server.pem")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            found = await reader.read()
            writer.close()
        except (ConnectionError, ssl.SSLError):
            return False
        return found.startswith(b"HTTP/1.1 200")

    async def play() -> None:
        listen = Listen(port=0, certificate=pem, key=pem, client_ca=ca)
        async with following_certificates(listen) as (port, looks):
            assert await knows(port, "old")
            assert not await knows(port, "new")
            ca.write_bytes((tmp_path / "new" / "ca.crt").read_bytes())
            async with asyncio.timeout(HANGS):
                while not await knows(port, "new"):
                    looks.release()
                    await asyncio.sleep(0.01)
            assert await knows(port, "old")

    asyncio.run(play())


@pytest.mark.parametrize(
    ("listen", "text"),
    [
        (Listen(host="0.0.0.0"), "only loopback"),
        (Listen(host="node.example"), "only loopback"),
        (Listen(certificate=Path("x")), "a certificate needs its key"),
        (Listen(client_ca=Path("x")), "a certificate is missing"),
    ],
)
def test_it_does_not_listen_in_the_open(listen: Listen, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        listen.check()
    Listen(host="::1").check()
    Listen(host="localhost").check()


def test_pods_of_a_service_are_spread_by_their_scores(tmp_path: Path) -> None:
    def of_service(name: str, **spec: Any) -> Object:
        owner = {"kind": "StatefulSet", "name": "web", "uid": "u", "controller": True}
        annotations = {"placement.nri/spread-over": HOSTNAME, "placement.nri/max-per-host": "1"}
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        return pod(name, 1) | {
            "metadata": metadata | {"ownerReferences": [owner]},
            "spec": pod(name, 1)["spec"] | spec,
        }

    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            await api.put("pods", of_service("p0", nodeName="a"))
            await at.until(lambda: bool(at.service.zones.pods()))
            scheduler = await at.connect()
            asked = {"Pod": of_service("p1"), "NodeNames": ["a", "b", "c"]}
            scores = await scheduler.ask("/prioritize", asked)
            assert {each["Host"]: each["Score"] for each in scores} == {"a": 0, "b": 10, "c": 10}
            found = await scheduler.ask("/filter", asked)
            assert found["NodeNames"] == ["b", "c"]
            assert "placement.nri/max-per-host" in found["FailedNodes"]["a"]
            _, text = await scheduler.get("/metrics")
            reason = "as many pods of the service as it allows"
            assert f'rejected_nodes_total{{reason="{reason}"}} 1.0' in text

    asyncio.run(play())


def test_pods_that_come_at_once_get_no_more_per_host_than_allowed(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api, choose=True) as at:
            scheduler = await at.connect()
            annotations = {"placement.nri/max-per-host": "1"}

            def burst(name: str) -> Object:
                asked = asking(1, "a", "b", "c", name=name)
                asked["Pod"]["metadata"] |= {"annotations": annotations, "ownerReferences": OWNERS}
                return asked

            nodes = [
                (await scheduler.ask("/filter", burst(f"p{n}")))["NodeNames"] for n in range(4)
            ]
            assert sorted(nodes) == [[], ["a"], ["b"], ["c"]]
            await api.put("pods", burst("p0")["Pod"] | {"spec": {"containers": []}})
            asked = {"PodName": "p0", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
            api.refuse = lambda _method, path: 500 * path.endswith("/binding")
            assert "500" in (await scheduler.ask("/bind", asked))["Error"]
            found = await scheduler.ask("/filter", burst("p4"))
            assert found["NodeNames"] == nodes[0]  # it could not be bound there

    asyncio.run(play())


OWNERS = [{"kind": "ReplicaSet", "name": "web-5d8f", "uid": "u", "controller": True}]

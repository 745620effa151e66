from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.core import Metric

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.program import REPLACED
from nri_policy.foundation.threads import started_pool
from nri_policy.nrt.publisher import PublicationPhase, PublishError, Trouble, WriteResult
from nri_policy.observability import http_server as module
from nri_policy.observability.endpoint import Endpoint, Probes
from nri_policy.observability.exporter import Exporter
from nri_policy.observability.http_server import ConnectionRate
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Address, Instrumentation
from tests.support.daemon import Served, pod, served
from tests.support.metrics_client import anywhere, ask, asked, exposed, port_of, scrape, value
from tests.support.patience import HANGS
from tests.support.ports import free_port

ADDRESS = "127.0.0.1"


@asynccontextmanager
async def scraped(folder: Path) -> AsyncIterator[tuple[Served, int]]:
    async with served(folder, listening=False) as node, exposed(node.daemon) as port:
        yield node, port


def at(port: int, *, export: bool = True) -> Instrumentation:
    return Instrumentation(http_endpoint=Address(ADDRESS, port), prometheus_export=export)


async def listening(endpoint: Endpoint, settings: Instrumentation) -> None:
    async with endpoint.following(settings):
        pass


async def test_a_scrape_tells_what_was_counted_and_what_is_held(tmp_path: Path) -> None:
    async with scraped(tmp_path) as (node, port):
        began = time.perf_counter()
        errors = await node.start(pod("a", "2"), pod("b"), pod("c", "99"))
        took = time.perf_counter() - began
        assert len(errors) == 1
        found = await scrape(port)
    requests = "nri_policy_nri_requests_total"
    assert value(found, requests, event="Synchronize", result="ok") == 1
    assert value(found, requests, event="CreateContainer", result="ok") == 2
    assert value(found, requests, event="CreateContainer", result="refused") == 1
    seconds = "nri_policy_nri_request_duration_seconds"
    assert value(found, f"{seconds}_count", event="CreateContainer") == 3
    assert 0 < value(found, f"{seconds}_sum", event="CreateContainer") < took
    assert value(found, "nri_policy_zone_cpus", zone="root", kind="exclusive") == 2
    assert sum(n for (name, _), n in found.items() if name == "nri_policy_containers") == 2
    assert value(found, "process_resident_memory_bytes") > 0


async def test_events_of_old_runtimes_are_counted_as_what_they_are(tmp_path: Path) -> None:
    async with scraped(tmp_path) as (node, port):
        await node.start(pod("a"))
        found = await scrape(port)
    counted = {
        dict(labels).get("event") for name, labels in found if name.endswith("requests_total")
    }
    assert {"RunPodSandbox", "StartContainer"} <= counted
    assert "StateChange" not in counted


async def test_a_scrape_can_be_had_as_openmetrics(tmp_path: Path) -> None:
    def get(port: int) -> tuple[str, str]:
        connection = http.client.HTTPConnection(ADDRESS, port)
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.getheader("Content-Type", ""), text

    async with scraped(tmp_path) as (_, port):
        content_type, text = await asyncio.to_thread(get, port)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_a_scrape_that_cannot_import_what_it_needs_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(*_: object) -> tuple[bytes, str]:
        raise ModuleNotFoundError("prometheus_client")

    monkeypatch.setattr(Exporter, "text", replaced)
    async with scraped(tmp_path) as (_, port):
        status, text = await ask(port, "/metrics")
    assert (status, text) == (503, f"the daemon cannot answer: {REPLACED}\n")


async def test_what_the_pools_hold_is_read_once_in_a_period_and_what_is_counted_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.observability.exporter.AGE", 0.0)
    async with scraped(tmp_path) as (node, port):
        before = await scrape(port)
        await node.start(pod("a", "2"))
        after = await scrape(port)
        await node.daemon.events.reconfigure(settings=node.daemon.node.view.layout.settings)
        later = await scrape(port)
    exclusive = [
        value(each, "nri_policy_zone_cpus", zone="root", kind="exclusive")
        for each in (before, after, later)
    ]
    assert exclusive == [0, 0, 2], "other settings are shown at once"
    assert value(after, "nri_policy_nri_requests_total", event="CreateContainer", result="ok") == 1


async def test_scrapes_while_pods_come_and_go_are_whole_and_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.observability.exporter.AGE", 0.0)
    async with scraped(tmp_path) as (node, port):
        await node.start(pod("first"))
        counts: list[float] = []

        async def load() -> None:
            for number in count():
                await node.start(pod(f"p{number}", "1"))
                await node.runtime.delete_pod(node.runtime.pod(f"p{number}"))
                if len(counts) == 20:
                    break

        loading = asyncio.create_task(load())
        for _ in range(20):
            found = await scrape(port)
            event = {"event": "CreateContainer"}
            ok = value(found, "nri_policy_nri_requests_total", result="ok", **event)
            name = "nri_policy_nri_request_duration_seconds"
            assert value(found, f"{name}_count", **event) == ok
            assert value(found, f"{name}_bucket", le="+Inf", **event) == ok
            counts.append(ok)
        await loading
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


async def test_a_text_is_made_once_a_second_in_each_format_whatever_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = 100.0, 0
    async with served(tmp_path, listening=False) as node:
        exporter = Exporter(node.daemon.metrics, node.daemon.node, Clock(now=lambda: now))
        collect = exporter.collect

        def collected() -> Iterator[Metric]:
            nonlocal made
            made += 1
            return collect()

        monkeypatch.setattr(exporter, "collect", collected)

        async def text(accepted: str = "") -> tuple[bytes, str]:
            return await asyncio.to_thread(exporter.text, accepted)

        first = await text()
        made = 0  # a registry collects once more when it is made
        assert await asyncio.gather(*(text() for _ in range(8))) == [first] * 8
        assert made == 0
        for version in ("0.0.1", "1.0.0", "1.0.7", "9"):
            _, form = await text(f"application/openmetrics-text;version={version}")
            assert form.startswith("application/openmetrics-text; version=1.0.0")
        assert made == 1
        now += 1.0
        await asyncio.gather(*(text() for _ in range(8)))
        assert made == 2


def test_connections_are_accepted_at_an_even_pace_after_a_burst() -> None:
    pace, now, taken = ConnectionRate(), 5.0, 0
    while now < 15.0:  # more come at any time than are accepted
        now += pace.delay(now)
        taken += 1
    assert taken == pytest.approx(module.MAX_CONNECTIONS + 10 * module.MAX_PER_SECOND, abs=1)
    assert [pace.delay(100.0) for _ in range(module.MAX_CONNECTIONS)] == [0.0] * 16
    assert pace.delay(100.0) == pytest.approx(1 / module.MAX_PER_SECOND)


async def test_scrapes_that_wait_leave_the_probes_listener_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 1000)
    async with served(tmp_path, listening=False) as node:
        endpoint, probes = node.daemon.endpoint(), free_port()
        await listening(endpoint, anywhere())
        held = []
        try:
            async with endpoint.probed(Address(ADDRESS, probes)):
                with endpoint._exporter._making:  # a scrape that never ends
                    for _ in range(200):  # more than are served, and than the kernel keeps waiting
                        client = socket.socket()
                        client.setblocking(False)
                        client.connect_ex((ADDRESS, port_of(endpoint)))
                        with suppress(OSError):
                            client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
                        held.append(client)
                    assert await ask(probes, "/livez") == (200, "ok\n")
                    assert await ask(probes, "/healthz") == (200, "ok\n")
                    assert (await ask(probes, "/readyz"))[0] == 200
                    assert await ask(probes, "/metrics") == (404, "not found\n")
            with pytest.raises(ConnectionRefusedError):
                await ask(probes, "/livez")
        finally:
            for each in held:
                each.close()
            await endpoint.close()


async def test_metrics_are_served_only_if_they_are_exported(tmp_path: Path) -> None:
    async with (
        served(tmp_path, listening=False) as node,
        exposed(node.daemon, anywhere(export=False)) as port,
    ):
        assert (await ask(port, "/metrics"))[0] == 404
        assert (await ask(port, "/livez"))[0] == 200


async def test_a_daemon_listens_nowhere_by_default(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint = node.daemon.endpoint()
        await listening(endpoint, node.daemon.node.view.layout.settings.instrumentation)
        assert endpoint.address is None


async def test_it_is_ready_only_while_a_runtime_is_there(tmp_path: Path) -> None:
    async with scraped(tmp_path) as (node, port):
        assert await ask(port, "/readyz") == (200, "ok\n")
        await node.runtime._nri.stop()
        async with asyncio.timeout(HANGS):
            while node.daemon._session.synchronized:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        status, text = await ask(port, "/readyz")
        assert (status, text) == (503, "runtime: none is connected and synchronized\n")
        assert await ask(port, "/livez") == (200, "ok\n")
        assert await ask(port, "/healthz") == (200, "ok\n")
        await node.runtime._nri.start()


@pytest.mark.parametrize(
    ("trouble", "answer"),
    [
        (None, (200, "ok\n")),
        (Trouble.NO_CRD, (200, "ok\n")),
        (Trouble.FORBIDDEN, (503, "nrt: the cluster: may not\n")),
    ],
)
async def test_it_is_not_ready_while_it_cannot_publish(
    tmp_path: Path, trouble: Trouble | None, answer: tuple[int, str]
) -> None:
    class Sink:
        name = "the cluster"

        async def put(self, new: object, *, fresh: bool) -> WriteResult:
            del new, fresh
            if trouble is None:
                return WriteResult()
            raise PublishError(trouble, "may not")

        async def is_gone(self) -> bool:
            return False

        async def remove(self) -> None:
            raise AssertionError("it is to be kept")

    async with scraped(tmp_path) as (node, port), node.daemon.topology.publishing([Sink()]):
        (publisher,) = node.daemon.topology._publishers
        async with asyncio.timeout(HANGS):
            while publisher.publication.phase is PublicationPhase.WAITING:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert await ask(port, "/readyz") == answer
        errors = value(await scrape(port), "nri_policy_nrt_publish_errors_total")
        assert errors == (trouble is not None)


async def test_a_further_check_can_keep_it_from_being_ready(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint = node.daemon.endpoint()
        ready = {"runtime": lambda: "", "nrt": lambda: "not published"}
        endpoint = Endpoint(Probes(alive=lambda: "", ready=ready), endpoint._exporter)
        await listening(endpoint, anywhere())
        assert await ask(port_of(endpoint), "/readyz") == (503, "nrt: not published\n")
        await endpoint.close()


async def test_a_loop_that_hangs_fails_probes_and_scrapes_instead_of_holding_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.observability.exporter.PATIENCE", 0.05)
    async with scraped(tmp_path) as (node, port):
        now = node.daemon.watchdog._clock.now
        node.daemon.watchdog._clock = replace(node.daemon.watchdog._clock, now=lambda: now() + 16)
        answers: list[tuple[int, str]] = []
        answered = threading.Event()

        def client() -> None:
            answers.extend(asked(port, path) for path in ("/livez", "/readyz", "/metrics"))
            answered.set()

        threading.Thread(target=client).start()
        assert answered.wait(HANGS), "the loop hangs here, and only here"
        assert [status for status, _ in answers] == [503, 503, 503]
        assert answers[0][1].startswith("loop: no beat for 16 seconds")
        assert "busy" in answers[2][1]


async def test_of_too_many_connections_the_oldest_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 1000)
    async with scraped(tmp_path) as (_, port):
        held = [socket.create_connection((ADDRESS, port), timeout=HANGS) for _ in range(40)]
        try:
            assert await ask(port, "/livez") == (200, "ok\n")
            assert await asyncio.to_thread(held[0].recv, 1) == b""
        finally:
            for each in held:
                each.close()


async def test_a_connection_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.1)
    async with scraped(tmp_path) as (_, port):
        with socket.create_connection((ADDRESS, port)) as slow:
            slow.settimeout(HANGS)
            slow.sendall(b"GET /livez HTTP/1.1\r\nX: ")
            assert await asyncio.to_thread(slow.recv, 100) == b""
        with socket.create_connection((ADDRESS, port)) as steady:
            steady.settimeout(0.001)

            def send_until_it_ends() -> bytes:
                with suppress(ConnectionError):
                    while True:
                        steady.sendall(b"x")
                        with suppress(TimeoutError):
                            return steady.recv(100)
                return b""

            assert await asyncio.to_thread(send_until_it_ends) == b""


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", b" 431 "),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b" 431 "),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b" 501 "),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"Error code: 400"),
        (b"GET /metrics/../livez HTTP/1.1\r\n\r\n", b" 404 "),
        (b"GET /livez?verbose HTTP/1.0\r\n\r\n", b" 200 "),
        (b"GET /livez\r\n\r\n", b"ok\n"),
    ],
)
async def test_any_request_is_answered_and_costs_little(
    tmp_path: Path, request_: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def get(port: int) -> bytes:
        with socket.create_connection((ADDRESS, port), timeout=HANGS) as client:
            client.sendall(request_)
            client.shutdown(socket.SHUT_WR)
            received = b""
            while part := client.recv(4096):
                received += part
            return received

    async with scraped(tmp_path) as (_, port):
        assert answer in await asyncio.to_thread(get, port)
    assert "http" not in caplog.text


async def test_a_reload_moves_the_endpoint_and_closes_it(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint, first, second = node.daemon.endpoint(), free_port(), free_port()
        await listening(endpoint, at(first))
        await listening(endpoint, at(second))
        assert (await ask(second, "/metrics"))[0] == 200
        await listening(endpoint, at(second, export=False))
        assert (await ask(second, "/metrics"))[0] == 404
        with pytest.raises(ConnectionRefusedError):
            await ask(first, "/livez")
        await listening(endpoint, Instrumentation())
        with pytest.raises(ConnectionRefusedError):
            await ask(second, "/livez")


async def test_an_endpoint_can_move_to_another_address_of_its_own_port(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint, port = node.daemon.endpoint(), free_port()
        await listening(endpoint, Instrumentation(http_endpoint=Address("", port)))
        await listening(endpoint, at(port))
        assert (await ask(port, "/livez"))[0] == 200
        await endpoint.close()


async def test_a_port_that_is_taken_refuses_the_reload_and_everything_stays(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint, port = node.daemon.endpoint(), free_port()
        await listening(endpoint, at(port))
        with socket.create_server((ADDRESS, 0)) as other:
            taken = other.getsockname()[1]
            with pytest.raises(OSError, match=f"Endpoint {ADDRESS}:{taken}: .*: Address already"):
                await listening(endpoint, at(taken, export=False))
        assert (await ask(port, "/metrics"))[0] == 200
        await endpoint.close()


async def test_an_endpoint_that_made_way_for_nothing_is_back(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint, port = node.daemon.endpoint(), free_port()
        await listening(endpoint, at(port))
        with socket.create_server(("127.0.0.2", port)), pytest.raises(OSError, match="cannot"):
            await listening(endpoint, Instrumentation(http_endpoint=Address("127.0.0.2", port)))
        assert (await ask(port, "/metrics"))[0] == 200
        await endpoint.close()


async def test_without_a_thread_an_endpoint_moves_nowhere_and_answers_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with served(tmp_path, listening=False) as node:
        endpoint, port, other = node.daemon.endpoint(), free_port(), free_port()
        asyncio.get_running_loop().set_default_executor(started_pool(1))  # as the daemon has
        await listening(endpoint, at(port))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="no more threads can be started"):
                await listening(endpoint, at(other))
            assert (await ask(port, "/livez"))[0] == 200
        await listening(endpoint, at(other))  # its port is free
        assert (await ask(other, "/livez"))[0] == 200
        await endpoint.close()


@pytest.mark.parametrize("host", ["", ADDRESS])
async def test_settings_refused_for_another_reason_leave_the_endpoint_where_it_was(
    tmp_path: Path, host: str
) -> None:
    """Also where it had to make way for itself."""
    async with served(tmp_path, listening=False) as node:
        endpoint, port = node.daemon.endpoint(), free_port()
        await listening(endpoint, at(port))
        new = Instrumentation(http_endpoint=Address(host, port if not host else free_port()))
        with pytest.raises(CapacityError):
            async with endpoint.following(new):
                raise CapacityError("no room")
        assert endpoint.address == (ADDRESS, port)
        assert (await ask(port, "/metrics"))[0] == 200
        await endpoint.close()


async def test_a_host_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        endpoint = node.daemon.endpoint()
        with pytest.raises(OSError, match=r"no-such-host\.invalid:80: cannot listen there"):
            await listening(
                endpoint, Instrumentation(http_endpoint=Address("no-such-host.invalid", 80))
            )
        assert endpoint.address is None

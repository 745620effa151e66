"""The control service over its socket, on a daemon with the embedded runtime."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from prometheus_client import Metric

from nri_policy.control.decision_log import MAX_WAITING
from nri_policy.control.request_limits import RequestLimiter
from nri_policy.daemon.control import Control
from nri_policy.delivery.next_actions import MAX_TRIES
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Event, Resized, Started
from nri_policy.engine.grant import Decision
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.grpc_services import service_stub
from nri_policy.hardware.locality import Locality, Locator
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.node import NewContainer, WhatIf
from nri_policy.observability.exporter import Exporter
from nri_policy.plugin.sources import Sources
from nri_policy.pools.capacity import CapacityError
from nri_policy.proto import control_pb2 as pb
from nri_policy.proto import health_pb2, nri_pb2
from nri_policy.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from nri_policy.report import (
    StatusReport,
    TriedReport,
    answer_report,
    decode,
    explanation_report,
    machine_report,
    newcomer_report,
    occupied_pools,
    plain,
    pool_reports,
)
from nri_policy.settings_sources.settings_file import SettingsFile
from nri_policy.simulation.device_manager import PluginDevice
from nri_policy.store import store
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.daemon import Served, pod, served


@asynccontextmanager
async def asked(folder: Path, **options: Any) -> AsyncIterator[tuple[Served, Any]]:
    """Yield a daemon and a stub of its control service."""
    async with (
        served(folder, **options) as node,
        grpc.aio.insecure_channel(f"unix:{node.socket}") as channel,
    ):
        yield node, service_stub(channel, pb.DESCRIPTOR.services_by_name["Control"])


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


async def explained(stub: Any, name: str) -> Any:
    return json.loads((await stub.Explain(pb.ExplainRequest(name=name))).json)


async def status_of(stub: Any) -> StatusReport:
    return decode((await stub.Status(pb.StatusRequest())).json, StatusReport)


async def listed(stub: Any) -> Any:
    return json.loads((await stub.Containers(pb.ContainersRequest())).json)


async def test_status_tells_the_runtime_and_what_is_used(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("own", "2"), pod("huge", "99"))
        status = await status_of(stub)
    assert status.synchronized
    assert status.runtime == "containerd 2.1.9"
    assert (status.pools, status.containers, status.refused) == (7, 1, 1)
    assert (str(status.online_cpus), str(status.reserved_cpus)) == ("0-15", "0")
    assert (str(status.exclusive_cpus), str(status.shared_cpus)) == ("4-5", "1-3,6-15")


async def test_status_notes_that_every_cpu_is_reserved(tmp_path: Path) -> None:
    async with asked(tmp_path, reservedResources={"cpu": "cpuset:0-15"}) as (_, stub):
        notices = (await status_of(stub)).notices
    assert "no CPU is left for pods: reservedResources.cpu takes 0-15" in notices


async def test_before_a_runtime_came_nothing_is_synchronized(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        node.daemon.synchronized.clear()
        status = await status_of(stub)
        assert not status.synchronized
        explain = await refusal(stub.Explain(pb.ExplainRequest(name="own")))
        assert explain == (
            grpc.StatusCode.NOT_FOUND,
            "no pod or container 'own'; the runtime has not told its containers yet",
        )
        trial = await refusal(stub.WhatIf(pb.WhatIfRequest(manifests=json.dumps(pod("new")))))
        assert trial[0] is grpc.StatusCode.FAILED_PRECONDITION


async def test_status_tells_the_latest_reload(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    async with asked(tmp_path, load=SettingsFile(path).load) as (node, stub):
        assert (await status_of(stub)).latest_reload is None
        outcome = await node.daemon.reloads.reload()
        status = await status_of(stub)
    assert status.latest_reload == outcome
    assert (outcome.accepted, outcome.origin) == (False, str(path))
    assert "No such file" in outcome.reason


async def test_an_audit_before_a_runtime_came_says_so(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        node.daemon.synchronized.clear()
        code, _ = await refusal(stub.Audit(pb.AuditRequest()))
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_watch_tells_of_settings_that_were_refused(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        watch = stub.Watch(pb.WatchRequest())
        await watch.initial_metadata()
        with pytest.raises(CapacityError):
            await node.daemon.events.reconfigure(
                settings=nodes.settings(reservedResources={"cpu": 99})
            )
        decision = await watch.read()
    assert (decision.event, decision.outcome) == ("reconfigured", "refused")
    assert "cannot reserve 99 CPUs" in decision.summary


async def test_pools_are_the_documented_view(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("own", "2"), pod("some", "500m", shared=True))
        pools = json.loads((await stub.Pools(pb.PoolsRequest())).json)
        assert pools == plain(occupied_pools(node.daemon.node.view))
    assert pools[1]["exclusive"] == "4-5"


async def test_containers_have_the_fields_of_scenario_results(tmp_path: Path) -> None:
    async with asked(tmp_path, machine="package:1 core:4") as (node, stub):
        await node.start(pod("guest"), pod("own", "2"), pod("huge", "99"))
        shown = await listed(stub)
    assert shown["default/guest/main"] == {
        "qos": "BestEffort",
        "sort": "normal",
        "pool": "socket #0",
        "cpus": "3",
        "exclusive": "",
        "shared_milli": 0,
        "isolated": "",
        "mems": "0",
        "shares": 2,
        "state": "running",
        "error": None,
        "updated_by": ["default/own/main was placed"],
    }
    assert (shown["default/own/main"]["exclusive"], shown["default/own/main"]["updated_by"]) == (
        "1-2",
        [],
    )
    refused = shown["default/huge/main"]
    assert refused["state"] == "error"
    assert "99 exclusive CPUs" in refused["error"]
    assert {*refused, "quota"} == {*shown["default/own/main"]}


@pytest.mark.parametrize(
    ("off", "decided_only"),
    [
        (["pinCPU"], ["cpus"]),
        (["pinMemory"], ["mems"]),
        (["pinCPU", "pinMemory"], ["cpus", "mems"]),
    ],
)
async def test_containers_say_what_of_them_is_decided_and_not_set(
    off: list[str], decided_only: list[str], tmp_path: Path
) -> None:
    own = pod("own", "1")
    left = {f"{each}.preserve.resource-policy.nri.io": "true" for each in ("cpu", "memory")}
    async with asked(tmp_path, **dict.fromkeys(off, False)) as (node, stub):
        await node.start(own, pod("left", "1", annotations=left))
        shown = await listed(stub)
        assert shown["default/own/main"]["decided_only"] == decided_only
        assert "decided_only" not in shown["default/left/main"], "nothing is decided"
        await node.daemon.events.reconfigure(settings=nodes.settings())
        assert "decided_only" not in (await listed(stub))["default/own/main"]


async def test_a_container_whose_update_fails_each_time_shows_it(tmp_path: Path) -> None:
    async with asked(tmp_path, version="2.4.0") as (node, stub):
        await node.start(pod("guest"), pod("own", "2"))
        guest = "default/guest/main"
        at_fault = CPUSet.parse("7")
        node.runtime.machine.online_cpus -= at_fault  # the runtime's kernel, not our own view
        settings = nodes.settings(reservedResources={"cpu": "cpuset:4-5"})
        await node.daemon.events.reconfigure(settings=settings)
        for _ in range(MAX_TRIES):
            assert (await listed(stub))[guest]["error"] is None
            await node.daemon.executor.messages.send(node.daemon._link)
        error = (await listed(stub))[guest]["error"]
        assert error.startswith("the runtime does not set its cpuset to 6-7")
        assert (await listed(stub))["default/own/main"]["error"] is None
        node.runtime.machine.online_cpus |= at_fault
        await node.runtime.restart()
        await node.runtime.synchronized(after=1)
        assert (await listed(stub))[guest]["error"] is None


async def test_explain_gives_what_the_engine_recorded(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("own", "2"))
        state = node.daemon.node.view
        (placed,) = state.placed.values()
        one = await explained(stub, "own/main")
        recorded = plain(explanation_report(placed.explanation, placed.grant))
        answer = plain(answer_report(state, placed))
        assert one == {**recorded, "answer": answer, "changes": [], "annotations": []}
        assert await explained(stub, "own") == [one], "a list for a pod"
        assert await explained(stub, "default/own/main") == one


async def test_explain_knows_who_was_refused_and_why(tmp_path: Path) -> None:
    odd = {"hide-hyperthreads.resource-policy.nri.io": "maybe"}
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("huge", "99"), pod("odd", "1", annotations=odd))
        huge, wrong = await explained(stub, "huge/main"), await explained(stub, "odd/main")
        assert huge["outcome"] == wrong["outcome"] == "refused"
        assert {each["fits"] for each in huge["candidates"]} == {False}
        assert min(each["shortfall"] for each in huge["candidates"]) == 84000
        assert (wrong["request"], wrong["candidates"]) == (None, [])
        assert "'maybe' is not true or false" in wrong["summary"]

        await node.runtime.delete_pod(node.runtime.pod("huge"))
        past = await explained(stub, "huge/main")
        assert past.items() >= huge.items(), "still, after its pod went"
        assert past["decided_at"] <= past["ended_at"]
        assert "default/huge/main" not in await listed(stub)

        await node.runtime.delete_pod(node.runtime.pod("odd"))
        await node.start(pod("odd", "1"))
        assert (await explained(stub, "odd/main"))["outcome"] == "placed"


async def test_who_is_gone_is_explained_by_the_journal(tmp_path: Path) -> None:
    async with asked(tmp_path, machine="package:1 core:4") as (node, stub):
        await node.start(pod("guest"), pod("own", "2"), pod("other", "1", shared=True))
        before = {name: await explained(stub, f"{name}/main") for name in ("guest", "own")}
        for name in ("own", "guest"):
            await node.runtime.delete_pod(node.runtime.pod(name))
        past = {name: await explained(stub, f"{name}/main") for name in ("guest", "own")}
        assert await explained(stub, "own") == [past["own"]], "a list for a pod"
        unknown = await refusal(stub.Explain(pb.ExplainRequest(name="owm/main")))
    assert unknown == (
        grpc.StatusCode.NOT_FOUND,
        "no pod or container 'owm/main'; did you mean 'own/main'?",
    )
    for name, shown in past.items():
        assert shown["summary"] == before[name]["summary"]
        assert shown["candidates"] == before[name]["candidates"]
        assert shown["decided_at"] <= shown["ended_at"]
    assert [each["cause"] for each in past["guest"]["changes"]] == [
        "default/own/main stopped",
        *(each["cause"] for each in before["guest"]["changes"]),
    ]


async def test_explain_tells_who_changed_a_container_last(tmp_path: Path) -> None:
    async with asked(tmp_path, machine="package:1 core:4") as (node, stub):
        await node.start(pod("guest"), pod("one", "1"), pod("two", "1"))
        changes = (await explained(stub, "guest/main"))["changes"]
    assert [(each["cause"], each["cpus"]) for each in changes] == [
        ("default/two/main was placed", "3"),
        ("default/one/main was placed", "2-3"),
    ]
    assert changes[0]["time"].endswith("Z")


async def test_a_new_container_of_an_old_name_has_a_past_of_its_own(tmp_path: Path) -> None:
    async with asked(tmp_path, machine="package:1 core:4") as (node, stub):
        await node.start(pod("guest"), pod("one", "1"))
        await node.runtime.delete_pod(node.runtime.pod("guest"))
        await node.start(pod("guest"))
        assert (await explained(stub, "guest/main"))["changes"] == []


async def test_the_machine_is_as_topology_prints_it(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        shown = json.loads((await stub.Machine(pb.MachineRequest())).json)
    layout = node.daemon.node.view.layout
    assert shown["machine"] == plain(machine_report(layout.machine))
    assert shown["pools"] == plain(pool_reports(layout.tree, layout.capacity))


async def test_settings_are_told_with_who_set_them(tmp_path: Path) -> None:
    async with asked(tmp_path, unlimitedBurstable="numa") as (_, stub):
        shown = json.loads((await stub.Settings(pb.SettingsRequest())).json)
    fields = {each["field"]: (each["value"], each["origin"]) for each in shown["settings"]}
    assert shown["origin"] == "test"
    assert fields["unlimitedBurstable"] == ("numa", "test")
    assert fields["pinCPU"] == (True, "default")


async def test_the_journal_comes_in_pages(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("one", "1"), pod("huge", "99"), pod("two", "1"))

        async def page(**request: Any) -> Any:
            return json.loads((await stub.Journal(pb.JournalRequest(**request))).json)

        whole = await page()
        assert not whole["more"]
        first = await page(limit=3)
        assert first["more"]
        rest = await page(after=first["records"][-1]["seq"])
        assert first["records"] + rest["records"] == whole["records"]
        (only,) = (await page(container="default/huge/main"))["records"]
    assert [each["event"] for each in whole["records"][:3]] == ["synchronized", "base", "created"]
    assert only["refused"]
    assert "99 exclusive CPUs" in only["summary"]
    placed = next(r for r in whole["records"] if r["container"] == "default/one/main")
    assert (placed["event"], placed["pool"], placed["cpus"]) == ("created", "NUMA node #1", "4")


async def test_without_a_journal_there_is_no_past_and_all_else_goes_on(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("one", "1"))
        for path in (tmp_path / "store").iterdir():
            path.unlink()
        assert (await explained(stub, "one/main"))["changes"] == []
        code, _ = await refusal(stub.Explain(pb.ExplainRequest(name="nobody")))
        assert code is grpc.StatusCode.NOT_FOUND
        page = json.loads((await stub.Journal(pb.JournalRequest())).json)
        assert page == {"records": [], "more": False}


async def test_a_refused_resize_is_told_beside_the_place_that_was_kept(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("own", "2"))
        before = await explained(stub, "own/main")
        change = ResourceChange(requests=Amounts(cpu=99_000), limits=Amounts(cpu=99_000))
        for _ in range(3):  # the kubelet asks again every second
            with pytest.raises(Exception, match="99 exclusive CPUs"):
                await node.runtime.resize(node.runtime.pod("own"), "main", change)
        shown = await explained(stub, "own/main")
        refused = shown.pop("refused_resize")
        assert (refused["outcome"], refused["count"]) == ("refused", 3)
        assert refused["decided_at"] <= refused["last"]
        page = json.loads((await stub.Journal(pb.JournalRequest())).json)
        assert [each["count"] for each in page["records"] if each["refused"]] == [3]
        assert shown == before
        assert (await listed(stub))["default/own/main"]["error"] is None

        change = ResourceChange(requests=Amounts(cpu=3_000), limits=Amounts(cpu=3_000))
        await node.runtime.resize(node.runtime.pod("own"), "main", change)
        assert "refused_resize" not in await explained(stub, "own/main")


async def test_a_name_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("own", "2"))
        code, text = await refusal(stub.Explain(pb.ExplainRequest(name="owns")))
    assert code is grpc.StatusCode.NOT_FOUND
    assert text == "no pod or container 'owns'; did you mean 'own'?"


async def test_what_if_changes_nothing(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("guest"), pod("own", "2"))
        engine = node.daemon.node._engine
        before, shown = engine.state.snapshot(), occupied_pools(node.daemon.node.view)
        request = pb.WhatIfRequest(manifests=json.dumps(pod("new", "4")), replicas=9)
        document = json.loads((await stub.WhatIf(request)).json)
        assert engine.state.snapshot() == before
        assert occupied_pools(node.daemon.node.view) == shown
    (new,) = document["pods"]
    assert (new["pod"], new["replicas"], new["fit"]) == ("default/new", 9, 3)
    assert not document["fits"]
    assert document["containers"]["default/new-4/main"]["state"] == "error"
    assert document["changes"]["default/guest/main"]["after"]["cpus"] == "1"


async def test_others_have_their_turn_while_a_large_question_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each container that comes, and after each that is put into the answer."""
    turns, at_creation, at_report = 0, list[int](), list[int]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def create(trial: WhatIf, container: Container, said: Collection[str]) -> bool:
        at_creation.append(turns)
        return created(trial, container, said)

    def report(newcomer: NewContainer) -> TriedReport:
        at_report.append(turns)
        return newcomer_report(newcomer)

    created = WhatIf._create
    monkeypatch.setattr(WhatIf, "_create", create)
    monkeypatch.setattr("nri_policy.daemon.control.newcomer_report", report)
    async with asked(tmp_path) as (_, stub), asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(others())
        request = pb.WhatIfRequest(manifests=json.dumps(pod("new", "1")), most=True)
        documents = await asyncio.gather(*(stub.WhatIf(request) for _ in range(3)))
        going_on.cancel()
    assert {json.loads(each.json)["pods"][0]["fit"] for each in documents} == {15}
    for seen in (at_creation, at_report):
        assert len(seen) == 3 * 16
        assert all(before < after for before, after in pairwise(seen))


async def test_questions_are_answered_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a copy of all there is, and a thread."""
    begun, at_once, seen = 0, list[int](), list[str]()
    arrived, all_here = 0, asyncio.Event()
    intercepting, reading = RequestLimiter.intercept_service, RequestLimiter._read
    parsing = Control._parse_question

    async def intercept(self: RequestLimiter, continuation: Any, details: Any) -> Any:
        nonlocal arrived
        arrived += details.method.endswith("/WhatIf")
        if arrived == 3:
            all_here.set()
        return await intercepting(self, continuation, details)

    def read(self: RequestLimiter, *args: Any, **options: Any) -> Any:
        seen.append("read")
        return reading(self, *args, **options)

    async def parse(self: Control, request: pb.WhatIfRequest) -> Any:
        nonlocal begun
        begun += 1
        await all_here.wait()
        for _ in range(100):  # for the others to begin, if they could
            await asyncio.sleep(0)
        seen.append("answer")
        at_once.append(begun)
        begun -= 1
        return await parsing(self, request)

    monkeypatch.setattr(RequestLimiter, "intercept_service", intercept)
    monkeypatch.setattr(RequestLimiter, "_read", read)
    monkeypatch.setattr(Control, "_parse_question", parse)
    async with asked(tmp_path) as (_, stub):
        request = pb.WhatIfRequest(manifests=json.dumps(pod("new", "1")))
        await asyncio.gather(*(stub.WhatIf(request) for _ in range(3)))
    assert at_once == [1, 1, 1]
    assert seen == ["read", "answer"] * 3


@pytest.mark.parametrize(
    ("manifests", "replicas", "message"),
    [
        ("", 1, "it has no manifest"),
        ("{kind: Pod}", 1, "apiVersion: null is not v1"),
        ("a: [", 1, "line 2, column 1"),
        (json.dumps(pod("new", "1")), 1001, "1001 replicas are too many"),
    ],
)
async def test_what_makes_no_sense_is_an_invalid_argument(
    manifests: str, replicas: int, message: str, tmp_path: Path
) -> None:
    async with asked(tmp_path) as (_, stub):
        request = pb.WhatIfRequest(manifests=manifests, replicas=replicas)
        code, text = await refusal(stub.WhatIf(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in text


async def test_watch_tells_every_decision_from_then_on(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        await node.start(pod("guest"))
        watch = stub.Watch(pb.WatchRequest())
        await watch.initial_metadata()
        await node.start(pod("own", "3"), pod("huge", "99"))
        await node.runtime.delete_pod(node.runtime.pod("guest"))
        seen = [await watch.read() for _ in range(6)]
    shown = [(each.event, each.container, each.outcome) for each in seen]
    assert shown[:4] == [
        ("created", "default/own/main", "placed"),
        ("started", "default/own/main", ""),
        ("created", "default/huge/main", "refused"),
        ("stopped", "", ""),
    ]
    assert (seen[0].pool, seen[0].cpus, seen[0].mems) == ("NUMA node #2", "8-10", "2")
    assert "99 exclusive CPUs" in seen[2].summary
    assert ["default/guest/main"] in [list(each.released) for each in seen]


async def test_watch_tells_who_else_changed(tmp_path: Path) -> None:
    async with asked(tmp_path, machine="package:1 core:4") as (node, stub):
        await node.start(pod("guest"))
        watch = stub.Watch(pb.WatchRequest())
        await watch.initial_metadata()
        await node.start(pod("own", "2"))
        (change,) = (await watch.read()).changes
    assert change == pb.Change(
        container="default/guest/main",
        cpus="3",
        mems="0",
        cause="default/own/main was placed",
    )


async def test_a_watcher_that_reads_too_slowly_gets_an_error(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        watch = stub.Watch(pb.WatchRequest())
        await watch.initial_metadata()
        event = Started(container_id="none", now=0)
        for _ in range(MAX_WAITING + 2):
            node.daemon._decision_log.observe(event, Decision(), node.daemon.node.view)

        async def read_all() -> None:
            async for _ in watch:
                pass

        code, text = await refusal(read_all())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "decisions waited to be read" in text


async def test_only_so_many_may_watch_and_who_leaves_makes_room(tmp_path: Path) -> None:
    async with asked(tmp_path) as (node, stub):
        watches = [stub.Watch(pb.WatchRequest()) for _ in range(16)]
        for watch in watches:
            await watch.initial_metadata()
        code, _ = await refusal(stub.Watch(pb.WatchRequest()).read())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(node.daemon._decision_log._watchers) == 16
        for watch in watches:
            watch.cancel()
        while node.daemon._decision_log._watchers:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)


async def test_the_standard_health_service(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as node,
        grpc.aio.insecure_channel(f"unix:{node.socket}") as channel,
    ):
        health = service_stub(channel, health_pb2.DESCRIPTOR.services_by_name["Health"])
        for service in ("", "nripolicy.control.v1.Control"):
            answer = await health.Check(HealthCheckRequest(service=service))
            assert answer.status == HealthCheckResponse.SERVING
        code, _ = await refusal(health.Check(HealthCheckRequest(service="other")))
        assert code is grpc.StatusCode.NOT_FOUND
        other = health.Watch(HealthCheckRequest(service="other"))
        assert (await other.read()).status == HealthCheckResponse.SERVICE_UNKNOWN

        node.daemon.synchronized.clear()
        answer = await health.Check(HealthCheckRequest())
        assert answer.status == HealthCheckResponse.NOT_SERVING
        watch = health.Watch(HealthCheckRequest())
        assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
        node.daemon.synchronized.set()
        assert (await watch.read()).status == HealthCheckResponse.SERVING


async def test_only_so_many_may_watch_the_health(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as node,
        grpc.aio.insecure_channel(f"unix:{node.socket}") as channel,
    ):
        health = service_stub(channel, health_pb2.DESCRIPTOR.services_by_name["Health"])
        watches = [health.Watch(HealthCheckRequest()) for _ in range(16)]
        for watch in watches:
            await watch.read()
        one_more = health.Watch(HealthCheckRequest())
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await health.Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
        watches.pop().cancel()
        while await health.Watch(HealthCheckRequest()).read() is grpc.aio.EOF:
            pass  # the server hears of it soon


async def test_one_socket_serves_runtimes_too(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as node,
        grpc.aio.insecure_channel(f"unix:{node.socket}") as channel,
    ):
        plugin = service_stub(channel, nri_pb2.DESCRIPTOR.services_by_name["Plugin"])
        configured = await plugin.Configure(nri_pb2.ConfigureRequest(NRI_version="v0.12.2"))
        assert configured.events


class OnNode3(Locator):
    """Finds every device beside NUMA node 3."""

    def device(self, kind: str, number: str) -> Locality | None:  # noqa: ARG002 - the other's
        return Locality(cpus=CPUSet.parse("12-15"), nodes=CPUSet([3]))


async def test_explain_shows_devices_and_that_the_kubelet_is_not_asked(tmp_path: Path) -> None:
    sources = Sources(locator=OnNode3(tmp_path, nodes.machine()))
    gpu = pod("gpu", "2")
    gpu["spec"]["containers"][0]["resources"]["limits"]["example.com/gpu"] = 1
    async with asked(tmp_path, sources=sources) as (node, stub):
        device = PluginDevice(id="gpu0", file="/dev/dri/renderD128")
        node.runtime.devices.advertise({"example.com/gpu": [device]})
        assert not await node.start(gpu)
        (shown,) = await explained(stub, "gpu")
        asks = nodes.settings(agent={"podResourceAPI": True})
        await node.daemon.events.reconfigure(settings=asks)
        (quiet,) = await explained(stub, "gpu")
    assert shown["devices"] == [
        {
            "source": "/dev/dri/renderD128",
            "count": 1,
            "nodes": "3",
            "cpus": "12-15",
            "granted": 2,
            "granted_of": 2,
        }
    ]
    assert [note for note in shown["notes"] if note.startswith("agent.podResourceAPI is off")]
    assert not [note for note in quiet["notes"] if "podResourceAPI" in note]


async def test_every_answer_has_the_latest_decision(tmp_path: Path) -> None:
    """Also while the observers, for which no answer waits, do not have it yet."""
    async with served(tmp_path) as node:
        daemon, control, nobody = node.daemon, node.daemon.control, cast("Any", None)

        async def handle(event: Event) -> None:
            async with daemon.node.turn:
                with suppress(PlacementError):
                    daemon.node.handle(event)

        async def decide(milli: int = 1000) -> Container:
            container = nodes.container(milli)
            await handle(Created(container=container))
            return container

        before = daemon.topology.feed.generation
        await decide()
        assert (await daemon.topology.feed.read()).generation == before + 1
        assert (await decide()).full_name in daemon.status.line()
        refused = await decide(99_000)
        document = await control.status(pb.StatusRequest(), nobody)
        assert decode(document.json, StatusReport).refused == 1
        also = await decide(99_000)
        listed = await control.containers(pb.ContainersRequest(), nobody)
        assert json.loads(listed.json).keys() >= {refused.full_name, also.full_name}
        resized = await decide(1000)
        await handle(Resized(container_id=resized.id, resources=nodes.container(99_000).resources))
        request = pb.ExplainRequest(name=resized.full_name)
        assert json.loads((await control.explain(request, nobody)).json)["refused_resize"]
        counted, _ = await Exporter(daemon.metrics, daemon.node, Clock(now=lambda: 0.0))._read()
        await decide()
        after, _ = await Exporter(daemon.metrics, daemon.node, Clock(now=lambda: 0.0))._read()
        assert _placed(after) == _placed(counted) + 1
        await decide()
        later = asyncio.ensure_future(decide())
        watching = control.watch(pb.WatchRequest(), cast("Any", _Caller()))
        first = await anext(aiter(watching))
        assert first.container == (await later).full_name, "it watches from now on"


class _Caller:
    async def send_initial_metadata(self, metadata: object) -> None: ...


def _placed(counted: tuple[Callable[[], Metric], ...]) -> float:
    """Return how many containers were placed, by what is counted."""
    samples = (sample for make in counted for sample in make().samples)
    return sum(
        sample.value
        for sample in samples
        if sample.name == "nri_policy_allocations_total" and sample.labels["result"] == "placed"
    )


async def test_the_status_says_that_decisions_are_not_stored_until_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "RETRY_AFTER", 0.0)
    with monkeypatch.context() as disk:
        disk.setattr(store, "open_database", full)
        async with asked(tmp_path) as (node, stub):
            (notice,) = (await status_of(stub)).notices
            assert "database or disk is full" in notice
            disk.undo()
            await node.start(pod("a", "1"))
            assert (await status_of(stub)).notices == ()

"""CRI calls, the events that they make, and what containers run with afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.resources import ManifestError, ResourceChange, read_part
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.containers import CRIError, RuntimeState
from nri_policy.simulation.embedded import EmbeddedRuntime, PodStartError
from tests.unit.simulation.scripted import ScriptedPlugin, adjusted, pinned, pod

Start = Callable[..., EmbeddedRuntime]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return what makes a runtime on a machine of 8 CPUs and 2 memory nodes."""

    def make(**settings: Any) -> EmbeddedRuntime:
        machine = {"online_cpus": CPUSet.parse("0-7"), "memory_nodes": CPUSet.parse("0-1")}
        return EmbeddedRuntime(tmp_path / "nri.sock", **machine | settings)

    return make


def refuse(text: str, code: int = Code.UNKNOWN) -> Callable[[Any], None]:
    def handler(_: Any) -> None:
        raise CallRefused(text, code=code)

    return handler


def cpu(**fields: Any) -> nri.LinuxResources:
    return pinned("", **fields).linux.resources


# ---- sequences


async def test_a_pod_lives_without_plugins(start: Start) -> None:
    async with start() as runtime:
        await runtime.start_pod(pod("pod0", "c0", "c1"))
        assert [c.key for c in runtime.containers] == ["default/pod0/c0", "default/pod0/c1"]
        assert runtime.container("pod0/c1").state is RuntimeState.RUNNING
        await runtime.delete_pod(runtime.pod("pod0"))
        assert runtime.containers == []
        assert runtime.pods == []


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9", "2.3.0"])
async def test_events_come_in_the_order_of_real_containerd(start: Start, version: str) -> None:
    async with (
        start(version=version) as runtime,
        ScriptedPlugin(runtime.socket_path, events=0x7FF) as plugin,
    ):
        await runtime.synchronized()
        running = await runtime.start_pod(pod())
        await runtime.update_container(runtime.container("pod0/c0"), cpu(shares=100))
        await runtime.stop_container(runtime.container("pod0/c0"))
        await runtime.delete_pod(running)
        seen = [method.upper().replace("_", "") for method in plugin.methods]
    assert seen == [
        "RUNPODSANDBOX",
        "CREATECONTAINER",
        "POSTCREATECONTAINER",
        "STARTCONTAINER",
        "POSTSTARTCONTAINER",
        "UPDATECONTAINER",
        "POSTUPDATECONTAINER",
        "STOPCONTAINER",
        "STOPPODSANDBOX",
        "REMOVECONTAINER",
        "REMOVEPODSANDBOX",
    ]


async def test_a_mask_keeps_events_away(start: Start) -> None:
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, events=0x0008) as plugin,
    ):
        await runtime.synchronized()
        await runtime.delete_pod(await runtime.start_pod(pod()))
        assert plugin.methods == ["CreateContainer"]


async def test_init_containers_run_to_their_end_before_the_next_and_sidecars_stay(
    start: Start,
) -> None:
    manifest = pod()
    manifest["spec"]["initContainers"] = [
        {"name": "init"},
        {"name": "side", "restartPolicy": "Always"},
    ]
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.start_pod(manifest)
        steps = [(method, request.container.name) for method, request in plugin.seen[3:]]
        assert [c.name for c in runtime.containers] == ["side", "c0"]
    assert steps == [
        ("CreateContainer", "init"),
        ("START_CONTAINER", "init"),
        ("StopContainer", "init"),
        ("REMOVE_CONTAINER", "init"),
        ("CreateContainer", "side"),
        ("START_CONTAINER", "side"),
        ("CreateContainer", "c0"),
        ("START_CONTAINER", "c0"),
    ]


async def test_a_refused_pod_is_undone(start: Start) -> None:
    handlers = {"RUN_POD_SANDBOX": refuse("no pods today")}
    async with start() as runtime, ScriptedPlugin(runtime.socket_path, handlers) as plugin:
        await runtime.synchronized()
        with pytest.raises(CRIError, match="no pods today"):
            await runtime.run_pod(pod())
        assert plugin.methods == ["RUN_POD_SANDBOX", "STOP_POD_SANDBOX", "REMOVE_POD_SANDBOX"]
        assert runtime.pods == []


async def test_a_refused_container_is_undone(start: Start) -> None:
    handlers = {"CreateContainer": refuse("no room", Code.RESOURCE_EXHAUSTED)}
    async with start() as runtime, ScriptedPlugin(runtime.socket_path, handlers) as plugin:
        await runtime.synchronized()
        running = await runtime.run_pod(pod())
        with pytest.raises(CRIError, match="no room") as caught:
            await runtime.create_container(running, "c0")
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert plugin.methods[1:] == ["CreateContainer", "StopContainer", "REMOVE_CONTAINER"]
        assert runtime.containers == []
        assert runtime.plugins == ["10-scripted"]


async def test_a_refused_start_stops_the_container(start: Start) -> None:
    handlers = {"START_CONTAINER": refuse("not now")}
    async with start() as runtime, ScriptedPlugin(runtime.socket_path, handlers) as plugin:
        await runtime.synchronized()
        with pytest.raises(PodStartError, match="default/pod0/c0: not now"):
            await runtime.start_pod(pod())
        assert plugin.methods[-2:] == ["START_CONTAINER", "StopContainer"]
        assert runtime.container("pod0/c0").state is RuntimeState.STOPPED


async def test_one_failed_container_does_not_keep_the_others_from_starting(start: Start) -> None:
    def create(request: nri.CreateContainerRequest) -> None:
        if request.container.name == "c0":
            raise CallRefused("not c0")

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": create}),
    ):
        await runtime.synchronized()
        with pytest.raises(PodStartError) as caught:
            await runtime.start_pod(pod("pod0", "c0", "c1"))
        assert list(caught.value.errors) == ["c0"]
        assert [c.name for c in runtime.containers] == ["c1"]


async def test_errors_of_what_cannot_fail_change_nothing(start: Start) -> None:
    names = ["POST_CREATE_CONTAINER", "POST_START_CONTAINER", "POST_UPDATE_CONTAINER"]
    names += ["StopContainer", "REMOVE_CONTAINER", "STOP_POD_SANDBOX", "REMOVE_POD_SANDBOX"]
    handlers = {name: refuse("no") for name in names}
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, handlers, events=0x7FF) as plugin,
    ):
        await runtime.synchronized()
        running = await runtime.start_pod(pod())
        await runtime.update_container(runtime.container("pod0/c0"), cpu(shares=7))
        await runtime.delete_pod(running)
        assert runtime.pods == []
        assert {*names} <= {*plugin.methods}


async def test_the_end_of_a_container_is_told_once_and_while_it_seems_to_run(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        running = await runtime.start_pod(pod())
        container = runtime.container("pod0/c0")
        await runtime.stop_container(container)
        await runtime.stop_container(container)
        await runtime.remove_container(container)
        await runtime.remove_container(container)
        await runtime.remove_pod(running)
        await runtime.remove_pod(running)
        (stopped,) = plugin.requests("StopContainer")
        assert stopped.container.state == nri.CONTAINER_RUNNING
        assert plugin.methods.count("REMOVE_CONTAINER") == 1
        assert plugin.methods.count("REMOVE_POD_SANDBOX") == 1


# ---- what plugins are told


async def test_plugins_see_what_kubelet_and_runtime_made(start: Start) -> None:
    async with (
        start(clock=Clock(date=lambda: 0.0)) as runtime,
        ScriptedPlugin(runtime.socket_path) as plugin,
    ):
        await runtime.synchronized()
        limits = {"cpu": 2, "memory": "1Gi"}
        await runtime.start_pod(pod("pod0", limits=limits))
        (request,) = plugin.requests("CreateContainer")
    assert request.pod.linux.cgroup_parent.startswith("/kubepods.slice/kubepods-pod")
    assert request.pod.annotations["kubernetes.io/config.seen"] == "1970-01-01T00:00:00Z"
    assert list(request.pod.ips) == ["10.244.0.1"]
    assert request.container.state == nri.CONTAINER_UNKNOWN
    assert request.container.linux.resources.cpu.shares.value == 2048
    assert request.container.linux.resources.memory.limit.value == 1 << 30
    assert request.container.linux.oom_score_adj.value == -997
    assert request.container.pod_sandbox_id == request.pod.id


async def test_times_are_shown_since_containerd_2_3(start: Start) -> None:
    for version, created in (("2.2.1", 0), ("2.3.0", 5_000_000_000)):
        async with (
            start(version=version, clock=Clock(date=lambda: 5.0)) as runtime,
            ScriptedPlugin(runtime.socket_path) as plugin,
        ):
            await runtime.synchronized()
            await runtime.delete_pod(await runtime.start_pod(pod()))
            (request,) = plugin.requests("StopContainer")
            assert request.container.created_at == created
            assert request.container.started_at == created


@pytest.mark.parametrize(("version", "forgets"), [("2.1.9", True), ("2.4.0", False)])
async def test_older_containerd_shows_little_of_a_pod_after_its_stop(
    start: Start, version: str, forgets: bool
) -> None:
    async with start(version=version) as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.delete_pod(await runtime.start_pod(pod()))
        stopped, _, removed = (request.pod for _, request in plugin.seen[-3:])
    assert stopped.linux.cgroups_path
    assert removed.linux.cgroup_parent
    assert bool(removed.linux.cgroups_path) is not forgets
    assert ("io.kubernetes.cri.sandbox-id" in removed.annotations) is not forgets
    assert "kubernetes.io/config.source" in removed.annotations


async def test_the_same_calls_make_the_same_ids(start: Start) -> None:
    ids = []
    for _ in range(2):
        async with start() as runtime:
            for name in ("a", "b"):
                await runtime.start_pod(pod(name))
            await runtime.delete_pod(runtime.pod("a"))
            await runtime.start_pod(pod("a"))
            ids.append([(p.id, p.message.uid) for p in runtime.pods])
            ids[-1] += [(c.id, "") for c in runtime.containers]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


async def test_a_restarted_container_is_a_new_one(start: Start) -> None:
    async with start() as runtime:
        running = await runtime.start_pod(pod())
        first = runtime.container("pod0/c0")
        with pytest.raises(CRIError, match="exists already"):
            await runtime.create_container(running, "c0")
        await runtime.stop_container(first)
        second = await runtime.create_container(running, "c0")
        assert second.id != first.id
        assert second.message.annotations["io.kubernetes.container.restartCount"] == "1"
        assert runtime.container("pod0/c0") is second


async def test_devices_of_a_device_plugin_are_shown(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        device = nri.LinuxDevice(path="/dev/gpu0", type="c", major=195)
        await runtime.create_container(await runtime.run_pod(pod()), "c0", devices=[device])
        (request,) = plugin.requests("CreateContainer")
        assert list(request.container.linux.devices) == [device]


# ---- adjustments


async def test_an_adjustment_is_what_the_container_runs_with(start: Start) -> None:
    reply = adjusted(cpus="2-3", mems="1", shares=7, quota=-1)
    reply.adjust.env.add(key="A", value="b")
    reply.adjust.annotations["x"] = "y"
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": lambda _: reply}),
    ):
        await runtime.synchronized()
        await runtime.start_pod(pod())
        container = runtime.container("pod0/c0")
    assert container.cpus == CPUSet.parse("2-3")
    assert container.mems == CPUSet.parse("1")
    assert container.shares == 7
    assert container.quota == -1
    assert container.env["A"] == "b"
    assert container.message.annotations["x"] == "y"
    assert container.updated_by == []


async def test_two_instances_of_a_plugin_make_every_creation_fail(start: Start) -> None:
    handlers = {"CreateContainer": lambda _: adjusted(cpus="1")}
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, handlers),
        ScriptedPlugin(runtime.socket_path, handlers),
    ):
        await runtime.synchronized(after=1)
        with pytest.raises(PodStartError, match="both tried to set"):
            await runtime.start_pod(pod())


async def test_plugins_are_asked_in_the_order_of_their_index(start: Start) -> None:
    asked: list[tuple[str, str]] = []

    def asks(name: str) -> dict[str, Callable[[Any], Any]]:
        def create(request: nri.CreateContainerRequest) -> nri.CreateContainerResponse | None:
            asked.append((name, request.container.linux.resources.cpu.cpus))
            return adjusted(cpus="5") if name == "second" else None

        return {"CreateContainer": create}

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, asks("third"), index="30"),
        ScriptedPlugin(runtime.socket_path, asks("first"), index="10"),
        ScriptedPlugin(runtime.socket_path, asks("second"), index="20"),
    ):
        await runtime.synchronized(after=2)
        await runtime.start_pod(pod())
        assert runtime.plugins == ["10-scripted", "20-scripted", "30-scripted"]
    assert asked == [("first", ""), ("second", ""), ("third", "5")]


@pytest.mark.parametrize("cpus", ["8", "0-8", "x", "3-1", " "])
async def test_a_cpuset_that_the_machine_does_not_have_fails_the_start_on_containerd(
    start: Start, cpus: str
) -> None:
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": lambda _: adjusted(cpus=cpus)}),
    ):
        await runtime.synchronized()
        container = await runtime.create_container(await runtime.run_pod(pod()), "c0")
        with pytest.raises(CRIError, match=r"runc: failed to write .* to cpuset.cpus"):
            await runtime.start_container(container)
        assert container.state is RuntimeState.STOPPED


async def test_a_memory_node_that_the_machine_does_not_have_fails_the_creation_on_crio(
    start: Start,
) -> None:
    """And no plugin hears of that."""
    async with (
        start(name="cri-o", version="1.34.0") as runtime,
        ScriptedPlugin(
            runtime.socket_path, {"CreateContainer": lambda _: adjusted(mems="2")}
        ) as plugin,
    ):
        await runtime.synchronized()
        with pytest.raises(CRIError, match=r"runc: failed to write '2' to cpuset.mems"):
            await runtime.create_container(await runtime.run_pod(pod()), "c0")
        assert runtime.containers == []
        assert plugin.seen[-1][0] == "CreateContainer"


# ---- updates of other containers


async def test_a_creation_can_update_others(start: Start) -> None:
    ids: dict[str, str] = {}

    def create(request: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
        ids[request.pod.name] = request.container.id
        reply = adjusted(cpus="0-7")
        reply.update.extend(
            pinned(id_, cpus="4-5") for name, id_ in ids.items() if name != request.pod.name
        )
        reply.update.append(pinned("unknown", cpus="1"))
        return reply

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": create}),
    ):
        await runtime.synchronized()
        await runtime.start_pod(pod("pod0"))
        await runtime.start_pod(pod("pod1"))
        updated = runtime.container("pod0/c0")
        assert updated.cpus == CPUSet.parse("4-5")
        assert [update.cause for update in updated.updated_by] == [
            "CreateContainer default/pod1/c0"
        ]
        assert updated.updated_by[0].resources.cpu.cpus == "4-5"


async def test_an_update_of_the_container_under_creation_fails_it(start: Start) -> None:
    def create(request: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
        return nri.CreateContainerResponse(update=[pinned(request.container.id, cpus="1")])

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": create}),
    ):
        await runtime.synchronized()
        with pytest.raises(PodStartError, match="during creation"):
            await runtime.start_pod(pod())


async def test_two_updates_of_one_container_in_one_reply_fail_the_call(start: Start) -> None:
    reply = nri.CreateContainerResponse(update=[pinned("x", cpus="1"), pinned("x", cpus="1")])
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": lambda _: reply}),
    ):
        await runtime.synchronized()
        with pytest.raises(PodStartError, match="both tried to set"):
            await runtime.start_pod(pod())


def updating(cpus: str) -> dict[str, Callable[[Any], Any]]:
    """Return handlers that update c0 when c1 is created."""
    ids: dict[str, str] = {}

    def create(request: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
        ids[request.container.name] = request.container.id
        reply = adjusted(cpus="0-7")
        if request.container.name == "c1":
            reply.update.append(pinned(ids["c0"], cpus=cpus))
        return reply

    return {"CreateContainer": create}


async def test_a_failing_update_of_another_is_only_logged_on_containerd(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path, updating("99")):
        await runtime.synchronized()
        await runtime.start_pod(pod("pod0", "c0", "c1"))
        assert runtime.container("pod0/c0").cpus == CPUSet.parse("0-7")


async def test_a_failing_update_of_another_fails_the_creation_on_crio(start: Start) -> None:
    async with (
        start(name="cri-o", version="1.34.0") as runtime,
        ScriptedPlugin(runtime.socket_path, updating("99")),
    ):
        await runtime.synchronized()
        with pytest.raises(PodStartError, match="pod0/c1: NRI failed to update"):
            await runtime.start_pod(pod("pod0", "c0", "c1"))


async def test_the_end_of_a_container_can_update_others(start: Start) -> None:
    def stop(request: nri.StopContainerRequest) -> nri.StopContainerResponse:
        others = [c.id for c in runtime.containers if c.id != request.container.id]
        return nri.StopContainerResponse(update=[pinned(id_, cpus="0-7") for id_ in others])

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"StopContainer": stop}),
    ):
        await runtime.synchronized()
        await runtime.start_pod(pod("pod0", "c0", "c1"))
        await runtime.stop_container(runtime.container("pod0/c0"))
        kept = runtime.container("pod0/c1")
        assert kept.cpus == CPUSet.parse("0-7")
        assert [u.cause for u in kept.updated_by] == ["StopContainer default/pod0/c0"]


# ---- resizes


async def test_a_resize_is_the_request_overlaid_with_the_plugins_values(start: Start) -> None:
    def update(request: nri.UpdateContainerRequest) -> nri.UpdateContainerResponse:
        return nri.UpdateContainerResponse(
            update=[pinned(request.container.id, cpus="6-7", shares=3)]
        )

    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"UpdateContainer": update}) as plugin,
    ):
        await runtime.synchronized()
        limits = {"cpu": 2, "memory": "1Gi"}
        running = await runtime.start_pod(pod("pod0", limits=limits))
        change = {"requests": {"cpu": 3}, "limits": {"cpu": 3}}
        await runtime.resize(running, "c0", read_part(change, ResourceChange))
        (request,) = plugin.requests("UpdateContainer")
    assert request.container.linux.resources.cpu.quota.value == 200_000
    assert request.linux_resources.cpu.quota.value == 300_000
    assert request.linux_resources.cpu.shares.value == 3072
    assert request.linux_resources.memory.limit.value == 1 << 30
    container = running.container("c0")
    assert (container.quota, container.shares) == (300_000, 3)
    assert container.cpus == CPUSet.parse("6-7")
    assert running.manifest.container("c0").resources.limits["cpu"] == 3000


async def test_an_update_without_cpus_leaves_those_that_another_program_has_written(
    start: Start,
) -> None:
    """runc writes no empty cpuset; the kernel would refuse it."""
    async with start() as runtime:
        await runtime.start_pod(pod("pod0"))
        container = runtime.container("pod0/c0")
        container.write_cpus(CPUSet.parse("2"), cause="another program")
        await runtime.update_container(container, cpu(shares=7))
        assert (container.cpus, container.shares) == (CPUSet.parse("2"), 7)
        assert not container.message.linux.resources.cpu.cpus


async def test_what_a_request_leaves_at_zero_stays_and_is_shown_as_zero(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.start_pod(pod("pod0", limits={"cpu": 1, "memory": "1Gi"}))
        container = runtime.container("pod0/c0")
        await runtime.update_container(container, cpu(cpus="1"))
        (request,) = plugin.requests("UpdateContainer")
        assert request.linux_resources.cpu.HasField("shares")
        assert request.linux_resources.memory.HasField("limit")
        assert container.cpus == CPUSet.parse("1")
        assert (container.shares, container.quota) == (1024, 100_000)
        assert container.memory_limit == 1 << 30


async def test_a_refused_resize_leaves_all_as_it_was(start: Start) -> None:
    handlers = {"UpdateContainer": refuse("no room")}
    async with start() as runtime, ScriptedPlugin(runtime.socket_path, handlers):
        await runtime.synchronized()
        running = await runtime.start_pod(pod("pod0", limits={"cpu": 1, "memory": "1Gi"}))
        before = running.manifest
        change = read_part({"requests": {"cpu": 3}, "limits": {"cpu": 3}}, ResourceChange)
        with pytest.raises(CRIError, match="no room"):
            await runtime.resize(running, "c0", change)
        assert running.manifest == before
        assert running.container("c0").shares == 1024
        with pytest.raises(ManifestError, match="must leave the pod Guaranteed"):
            await runtime.resize(
                running, "c0", read_part({"requests": {"cpu": "1m"}}, ResourceChange)
            )
        over = read_part({"requests": {"cpu": 2}, "limits": {"memory": "2Gi"}}, ResourceChange)
        with pytest.raises(ManifestError, match="the request of cpu is more than its limit"):
            await runtime.resize(running, "c0", over)
        assert running.manifest == before


async def test_a_resize_of_a_container_that_has_ended_is_for_its_next_life(start: Start) -> None:
    async with start() as runtime:
        running = await runtime.start_pod(pod("pod0", limits={"cpu": 1, "memory": "1Gi"}))
        await runtime.delete_container(running.container("c0"))
        change = read_part({"requests": {"cpu": 3}, "limits": {"cpu": 3}}, ResourceChange)
        await runtime.resize(running, "c0", change)
        assert (await runtime.create_container(running, "c0")).quota == 300_000
        with pytest.raises(KeyError):
            await runtime.resize(running, "c7", change)


async def test_an_own_update_that_the_machine_refuses_fails_the_resize(start: Start) -> None:
    async with start() as runtime:
        await runtime.start_pod(pod())
        container = runtime.container("pod0/c0")
        runtime.machine.online_cpus = CPUSet.parse("0-3")
        with pytest.raises(CRIError, match="there are 0-3"):
            await runtime.update_container(container, cpu(cpus="2-4", shares=9))
        with pytest.raises(CRIError, match="CPU quota"):
            await runtime.update_container(container, cpu(quota=999))
        assert not container.cpus
        assert container.shares == 2


async def test_an_update_of_a_container_that_is_not_started_waits_for_its_start(
    start: Start,
) -> None:
    async with start() as runtime:
        container = await runtime.create_container(await runtime.run_pod(pod()), "c0")
        await runtime.update_container(container, cpu(cpus="99"))
        assert container.cpus == CPUSet.parse("99")
        with pytest.raises(CRIError, match="'99'"):
            await runtime.start_container(container)


async def test_a_pod_is_resized_where_the_release_can(start: Start) -> None:
    change = read_part({"requests": {"cpu": 3}, "limits": {"cpu": 3}}, ResourceChange)
    limits = {"cpu": 1, "memory": "1Gi"}
    for version, events in (
        ("2.2.1", []),
        ("2.3.0", ["UpdatePodSandbox", "PostUpdatePodSandbox"] * 2),
    ):
        async with (
            start(version=version) as runtime,
            ScriptedPlugin(runtime.socket_path, events=0x1800) as plugin,
        ):
            await runtime.synchronized()
            running = await runtime.start_pod(pod("pod0", limits=limits))
            await runtime.resize(running, "c0", change)
            assert plugin.methods == events
            assert running.container("c0").shares == 3072


async def test_a_plugin_can_refuse_the_resize_of_a_pod(start: Start) -> None:
    async with (
        start(version="2.3.0") as runtime,
        ScriptedPlugin(
            runtime.socket_path, {"UpdatePodSandbox": refuse("too large")}, events=0x0800
        ),
    ):
        await runtime.synchronized()
        running = await runtime.start_pod(pod("pod0", requests={"cpu": 1}))
        with pytest.raises(CRIError, match="too large"):
            await runtime.resize(running, "c0", read_part({"requests": {"cpu": 3}}, ResourceChange))
        assert running.amounts.cpu.shares.value == 1024


async def test_a_release_without_pod_updates_says_so(start: Start) -> None:
    async with start(version="2.1.9") as runtime:
        with pytest.raises(CRIError) as caught:
            await runtime.update_pod(await runtime.run_pod(pod()), cpu(shares=1))
        assert caught.value.code == Code.UNIMPLEMENTED


# ---- validation


async def test_a_validator_can_reject(start: Start) -> None:
    def validate(
        request: nri.ValidateContainerAdjustmentRequest,
    ) -> nri.ValidateContainerAdjustmentResponse:
        assert request.adjust.linux.resources.cpu.cpus == "1"
        assert request.container.linux.resources.cpu.cpus == ""
        assert [plugin.index for plugin in request.plugins] == ["10", "20"]
        return nri.ValidateContainerAdjustmentResponse(reject=True, reason="not like this")

    async with (
        start(version="2.2.1") as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": lambda _: adjusted(cpus="1")}),
        ScriptedPlugin(
            runtime.socket_path,
            {"ValidateContainerAdjustment": validate},
            index="20",
            events=0x2000,
        ),
    ):
        await runtime.synchronized(after=1)
        with pytest.raises(PodStartError, match="not like this"):
            await runtime.start_pod(pod())


@pytest.mark.parametrize(("version", "fails"), [("2.1.9", False), ("2.2.0", True)])
async def test_no_mask_is_all_events_and_so_makes_a_validator(
    start: Start, version: str, fails: bool
) -> None:
    handlers = {"ValidateContainerAdjustment": refuse("unknown method", Code.UNIMPLEMENTED)}
    async with (
        start(version=version) as runtime,
        ScriptedPlugin(runtime.socket_path, handlers, events=0) as plugin,
    ):
        await runtime.synchronized()
        try:
            await runtime.start_pod(pod())
        except PodStartError:
            assert fails
        else:
            assert not fails
        assert len(plugin.methods) >= 4


async def test_a_pod_that_was_deleted_by_force_may_run_beside_its_successor(start: Start) -> None:
    successor = pod()
    successor["metadata"]["uid"] = "00000000-0000-0000-0000-000000000001"
    async with start() as runtime:
        old = await runtime.start_pod(pod())
        new = await runtime.start_pod(successor)
        assert old.key == new.key
        assert {each.state for each in runtime.containers} == {RuntimeState.RUNNING}
        with pytest.raises(CRIError, match="pod default/pod0 exists already"):
            await runtime.run_pod(successor)


# ---- bad calls


async def test_a_bad_call_is_refused(start: Start) -> None:
    async with start(kubelet=Kubelet(cgroup_driver="cgroupfs")) as runtime:
        running = await runtime.start_pod(pod())
        container = runtime.container("pod0/c0")
        with pytest.raises(CRIError, match="pod default/pod0 exists already"):
            await runtime.run_pod(pod())
        with pytest.raises(CRIError, match="container default/pod0/c0 is running"):
            await runtime.start_container(container)
        with pytest.raises(KeyError):
            await runtime.create_container(running, "nobody")
        with pytest.raises(ManifestError, match="spec"):
            await runtime.run_pod({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}})
        await runtime.delete_pod(running)
        with pytest.raises(CRIError, match="container default/pod0/c0 is removed"):
            await runtime.update_container(container, cpu(shares=1))
        with pytest.raises(CRIError, match="pod default/pod0 is not ready"):
            await runtime.create_container(running, "c0")
        with pytest.raises(KeyError):
            runtime.container("pod0/c0")

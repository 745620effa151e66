from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.yamltext import Marks
from nri_policy.nri.errors import CallRefused
from nri_policy.proto import nri_pb2 as nri
from nri_policy.report import plain
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.playback import Mismatch, NodeError, NodeSnapshot, Playback, Result
from nri_policy.simulation.scenario import read_step
from tests.support.pictures import holding
from tests.unit.simulation.scripted import ScriptedPlugin, adjusted, pinned, pod


class FakeNode:
    """Gives every container the CPUs that its settings say, and moves the others along."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        self.log: list[str] = []
        self.mute = False
        self._runtime = runtime
        self._cpus = "0-7"
        self._running: asyncio.Task[None] | None = None

    async def restart(self) -> None:
        self.log.append("restart")
        if self._cpus == "bad":
            raise NodeError("settings are bad")
        await self.stop()
        if not self.mute:
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        """Be connected, and connect again whenever the runtime goes."""
        while True:
            plugin = ScriptedPlugin(self._runtime.socket_path, {"CreateContainer": self._create})
            try:
                async with plugin:
                    await plugin.closed.wait()
            except FileNotFoundError:
                await asyncio.sleep(0)
            else:
                self.log.append("connect")

    async def settings(self, spec: Mapping[str, Any], _marks: Marks) -> None:
        self.log.append("settings")
        self._cpus = spec["cpus"]

    async def hotplug(self, *, offline: CPUSet, online: CPUSet) -> None:
        self.log.append(f"-{offline}+{online}")

    async def attach(self, devices: Mapping[int, int | None], disks: Mapping[str, int]) -> None:
        self.log.append(f"{dict(devices)} {dict(disks)}")

    async def advance(self, seconds: float) -> None:
        self.log.append(f"{seconds}s")

    async def snapshot(self) -> NodeSnapshot:
        held = {c.key: holding(pool="root") for c in self._runtime.containers}
        return NodeSnapshot(containers=held, pools=())

    def _create(self, request: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
        if request.container.name == "bad":
            raise CallRefused("no room for bad")
        reply = adjusted(cpus=self._cpus)
        reply.update.extend(
            pinned(container.id, cpus=self._cpus)
            for container in self._runtime.containers
            if container.id != request.container.id and str(container.cpus) != self._cpus
        )
        return reply


Play = Callable[..., Any]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return what plays steps on 8 CPUs and returns the results and what the node did."""

    async def run(
        *steps: dict[str, Any], patience: float = 60.0, mute: bool = False
    ) -> tuple[list[Result], list[str]]:
        async with EmbeddedRuntime(
            tmp_path / "nri.sock",
            online_cpus=CPUSet.parse("0-7"),
            memory_nodes=CPUSet.parse("0"),
        ) as runtime:
            node = FakeNode(runtime)
            node.mute = mute
            playback = Playback(runtime, node, patience=patience)
            read = [read_step(step, folder=tmp_path) for step in steps]
            results = [result async for result in playback.play(read)]
            await node.stop()
            return results, node.log

    return run


def errors(results: list[Result]) -> list[str | None]:
    return [result.error for result in results]


async def test_the_daemon_starts_with_the_settings_of_the_first_step(play: Play) -> None:
    _, log = await play({"settings": {"cpus": "1"}}, {"apply": pod()}, {"settings": {"cpus": "2"}})
    assert log == ["settings", "restart", "settings"]


async def test_the_daemon_starts_before_the_first_step_that_gives_no_settings(play: Play) -> None:
    _, log = await play({"advance": "1s"})
    assert log == ["restart", "1.0s"]


async def test_a_daemon_that_does_not_start_is_tried_again(play: Play) -> None:
    results, log = await play(
        {"settings": {"cpus": "bad"}}, {"apply": pod()}, {"settings": {"cpus": "1"}}
    )
    assert errors(results) == ["settings are bad", "settings are bad", None]
    assert log == ["settings", "restart", "restart", "settings", "restart"]


async def test_devices_and_disks_are_told_together_and_given_to_pods(play: Play) -> None:
    asking = pod(requests={"v.com/nic": "1"}, limits={"v.com/nic": "1"})
    results, log = await play(
        {"devices": {"v.com/nic": [{"id": "a", "numa": 1}]}},
        {"disks": {"/data": 2}},
        {"devices": {"v.com/nic": [{"id": "b"}]}},
        {"apply": [asking, asking | {"metadata": {"name": "pod1"}}]},
        {"expect": {"pod0/c0": {"state": "running"}, "pod1/c0": {"error": "0 of 1 are free"}}},
    )
    assert [each for each in log if each.startswith("{")] == [
        "{0: 1} {}",
        "{0: 1} {'/data': 2}",
        "{1: None} {'/data': 2}",
    ]
    assert not results[-1].mismatches


async def test_an_expectation_starts_no_daemon(play: Play) -> None:
    results, log = await play(
        {"settings": {"cpus": "bad"}}, {"expect": {"error": "are bad"}}, {"settings": {"cpus": "1"}}
    )
    assert errors(results) == ["settings are bad", None, None]
    assert results[1].mismatches == []
    assert log == ["settings", "restart", "settings", "restart"]


async def test_a_daemon_that_does_not_connect_is_not_waited_for_forever(play: Play) -> None:
    results, _ = await play({"advance": "1s"}, patience=0, mute=True)
    assert errors(results) == ["the daemon did not connect to the runtime"]


async def test_a_result_has_the_documented_fields(play: Play) -> None:
    (result,), _ = await play({"apply": pod("pod0", requests={"cpu": 1})})
    assert plain(result) == {
        "step": 1,
        "error": None,
        "mismatches": [],
        "containers": {
            "default/pod0/c0": {
                **plain(holding()),
                "cpus": "0-7",
                "mems": "",
                "shares": 1024,
                "updated_by": [],
            }
        },
        "pools": [],
    }


async def test_a_result_tells_what_updated_a_container_in_its_step(play: Play) -> None:
    results, _ = await play(
        {"apply": pod()},
        {"settings": {"cpus": "3"}},
        {"apply": pod("pod1")},
        {"advance": "1s"},
    )
    history = [result.containers["default/pod0/c0"].updated_by for result in results]
    assert history == [(), (), ("CreateContainer default/pod1/c0",), ()]
    assert results[-1].containers["default/pod0/c0"].cpus == CPUSet([3])


async def test_an_expectation_is_about_the_step_before_it(play: Play) -> None:
    moved = {"pod0/c0": {"updated_by": ["CreateContainer default/pod1/c0"]}}
    results, _ = await play(
        {"apply": pod()},
        {"settings": {"cpus": "3"}},
        {"apply": pod("pod1")},
        {"expect": {}},
        {"expect": moved},
        {"advance": "1s"},
        {"expect": moved},
    )
    assert results[4].mismatches == []
    assert [mismatch.field for mismatch in results[6].mismatches] == ["updated_by"]


async def test_an_error_of_a_step_can_be_expected(play: Play) -> None:
    results, _ = await play(
        {"delete": "nobody"},
        {"expect": {"error": "no nobody"}},
        {"expect": {"error": "no somebody"}},
        {"advance": "1s"},
        {"expect": {"error": "no nobody"}},
    )
    mismatches = [[str(mismatch) for mismatch in result.mismatches] for result in results]
    assert mismatches == [
        [],
        [],
        ["the last step: error want 'no somebody', got 'there is no nobody'"],
        [],
        ["the last step: error want 'no nobody', got None"],
    ]


async def test_a_refused_container_stays_in_the_list_until_its_pod_goes(play: Play) -> None:
    results, _ = await play(
        {"apply": [pod("pod0", "bad", "good")]}, {"advance": "1s"}, {"delete": "pod0"}
    )
    assert errors(results) == ["default/pod0/bad: no room for bad", None, None]
    for result in results[:2]:
        refused = result.containers["default/pod0/bad"]
        assert (refused.state, refused.error) == ("error", "no room for bad")
        assert not refused.cpus
        assert result.containers["default/pod0/good"].state == "running"
    assert results[2].containers == {}


async def test_a_container_that_does_not_start_shows_its_error(play: Play) -> None:
    results, _ = await play({"settings": {"cpus": "9"}}, {"apply": pod()})
    shown = results[1].containers["default/pod0/c0"]
    assert shown.state == "error"
    assert "failed to write '9'" in shown.error


async def test_a_pod_that_is_there_is_not_started_again(play: Play) -> None:
    results, _ = await play({"apply": pod()}, {"apply": pod()})
    assert errors(results) == [None, "default/pod0: pod default/pod0 exists already"]
    assert results[1].containers["default/pod0/c0"].state == "running"


async def test_pods_and_containers_are_deleted_by_name(play: Play) -> None:
    elsewhere = pod("pod1")
    elsewhere["metadata"]["namespace"] = "ns"
    results, _ = await play(
        {"apply": [pod("pod0", "c0", "c1", "c2"), elsewhere, pod("pod2")]},
        {"delete": ["pod0/c0", "default/pod0/c1", "ns/pod1"]},
        {"delete": ["nobody", "pod2", "a/b/c"]},
    )
    assert errors(results) == [None, None, "there is no nobody; there is no a/b/c"]
    assert [*results[1].containers] == ["default/pod0/c2", "default/pod2/c0"]
    assert [*results[2].containers] == ["default/pod0/c2"]


async def test_a_name_that_means_a_pod_and_a_container_is_refused(play: Play) -> None:
    other = pod("c0")
    other["metadata"]["namespace"] = "pod0"
    results, _ = await play({"apply": [pod(), other]}, {"delete": ["pod0/c0"]})
    assert "pod0/c0 is a pod and a container: write default/pod0/c0" in results[1].error
    assert len(results[1].containers) == 2


async def test_a_resize_names_a_container_that_is_there(play: Play) -> None:
    def resize(container: str, cpu: Any) -> dict[str, Any]:
        resources = {"requests": {"cpu": cpu}}
        return {"resize": {"pod": "pod0", "container": container, "resources": resources}}

    results, _ = await play(
        {"apply": pod("pod0", requests={"cpu": 1})},
        resize("c0", 2),
        resize("c1", 2),
        resize("c0", 0),
    )
    assert results[1].containers["default/pod0/c0"].shares == 2048
    assert errors(results)[:3] == [None, None, "there is no default/pod0/c1"]
    assert "must leave the pod Burstable" in results[3].error


async def test_the_daemon_and_the_runtime_restart(play: Play) -> None:
    results, log = await play(
        {"apply": pod()}, {"restart": "daemon"}, {"restart": "runtime"}, {"apply": pod("pod1")}
    )
    assert errors(results) == [None] * 4
    assert log == ["restart", "restart", "connect"]
    assert len(results[3].containers) == 2
    assert results[3].containers["default/pod1/c0"].cpus == CPUSet.parse("0-7")


async def test_cpus_go_and_come(play: Play) -> None:
    results, log = await play(
        {"offline": "6-7"},
        {"offline": "5-6"},
        {"online": "7-8"},
        {"apply": pod()},
        {"online": 6},
    )
    assert errors(results) == [
        None,
        "CPUs that are not online: 6",
        "CPUs that are not offline: 8",
        ANY,
        None,
    ]
    assert "runc: failed to write '0-7' to cpuset.cpus" in results[3].error
    assert "(there are 0-5)" in results[3].error
    assert log == ["restart", "-6-7+", "-+6"]


async def test_what_is_expected_is_compared(play: Play) -> None:
    results, _ = await play(
        {"apply": [pod("pod0", "c0", "bad")]},
        {
            "expect": {
                "pod0/c0": {"cpus": "0,1-7", "pool": "root", "error": None, "shares": 2},
                "default/pod0/bad": {"state": "error", "error": "no room"},
                "pod9/c0": None,
            }
        },
        {
            "expect": {
                "pod0/c0": {"cpus": "0", "pool": "leaf", "error": "no room"},
                "pod0/bad": None,
                "pod9/c0": {"mems": "0"},
            }
        },
    )
    assert results[1].mismatches == []
    assert results[2].mismatches == [
        Mismatch(container="default/pod0/c0", field="cpus", want="0", got="0-7"),
        Mismatch(container="default/pod0/c0", field="pool", want="leaf", got="root"),
        Mismatch(container="default/pod0/c0", field="error", want="no room", got=None),
        Mismatch(container="default/pod0/bad", field="", want="absent", got="there"),
        Mismatch(container="default/pod9/c0", field="", want="there", got="absent"),
    ]
    assert str(results[2].mismatches[0]) == "default/pod0/c0: cpus want '0', got '0-7'"
    assert str(results[2].mismatches[3]) == "default/pod0/bad: want 'absent', got 'there'"

"""Claims that are odd, or come at an odd time, by the services that a kubelet calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nri_policy.dra.allocation import MAX_PARTS
from nri_policy.dra.resource_slice import CPU
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kube.events import Subject
from tests.support.apiserver import Answer
from tests.support.dra_kubelet import PrepareError
from tests.support.rooms import with_cpus

from .driver_cluster import Cluster, as_it_ran, cluster, cpu


def held(them: Cluster) -> dict[str, str]:
    """Return the CPUs of each part of a claim, by `claim/request/device`."""
    claims = them.node.daemon.node.view.claims.values()
    parts = [(each.container.claim_part, each.grant.exclusive) for each in claims]
    return {f"{part.name}/{part.request}/{part.device}": str(cpus) for part, cpus in parts}


ODD: list[tuple[list[dict[str, Any]], str]] = [
    ([cpu("numa1", "9e30")], "out of range"),
    ([cpu("numa1", "9000000")], "numa1 lacks 8999996 CPUs"),
    ([cpu("numa1", "1e-30"), cpu("numa1", "-0", "b")], "asks for nothing of numa1"),
    ([cpu("numa1", "two")], "two"),
    ([cpu("numa1", "1" * 10_000)], "numa1"),
    ([cpu("numa1", consumedCapacity={CPU: 2.5})], "malformed"),
    ([cpu("numa1", consumedCapacity={CPU: None})], "malformed"),
    ([cpu("numa1", consumedCapacity={"placement.nri/memory": "1Gi"})], "consumes no"),
    ([cpu("numa1", "1"), cpu("numa1", "2")], "has the device numa1 twice for cpu"),
    ([cpu("numa1", "2", "a"), cpu("numa1", "3", "b")], "numa1 lacks 1 CPU: 2 free, 3 asked"),
    ([cpu(f"numa{n % 4}", "1m", f"r{n}") for n in range(MAX_PARTS + 1)], "more than 32 devices"),
    ([cpu("", "1")], "has the device , which this node has not"),
    ([cpu("numa1\n", "1")], "which this node has not"),
]


@pytest.mark.parametrize(("results", "why"), ODD, ids=[each[1] for each in ODD])
async def test_an_odd_claim_is_refused_and_the_next_one_is_served(
    results: list[dict[str, Any]], why: str, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as them:
        bad = await them.allocate("bad", *results)
        with pytest.raises(PrepareError) as refusal:
            await them.kubelet.prepare("uid-web", bad)
        assert why in str(refusal.value)
        assert len(str(refusal.value)) < 1000
        assert not held(them)
        good = await them.allocate("good", cpu("numa1", "4"))
        await them.kubelet.prepare("uid-web", good)
        assert held(them) == {"good/cpu/numa1": "4-7"}


async def test_tiny_amounts_of_many_requests_share_one_cpu(tmp_path: Path) -> None:
    many = [cpu("numa1", "1m", f"r{n}") for n in range(MAX_PARTS)]
    async with cluster(tmp_path) as them:
        made = await them.allocate("tiny", *many)
        await them.kubelet.prepare("uid-web", made)
        assert set(held(them).values()) == {""}
        assert not await them.start("web", them.kubelet.env(made))
        assert them.cpus("web") == "4-7"
        await them.end("web")
        assert not held(them)


async def test_two_requests_on_one_device_have_cpus_of_their_own(tmp_path: Path) -> None:
    """Also where their names differ in nothing that a variable's name can have."""
    async with cluster(tmp_path) as them:
        made = await them.allocate(
            "both", cpu("numa1", "1", "a-b"), cpu("numa1", "2", "a/b"), cpu("numa1", "1", "a--b")
        )
        await them.kubelet.prepare("uid-web", made)
        assert held(them) == {
            "both/a-b/numa1": "4",
            "both/a/b/numa1": "6-7",
            "both/a--b/numa1": "5",
        }
        for request, own in (("a-b", "4"), ("a", "6-7"), ("a--b", "5")):
            pod = as_it_ran("web", them.kubelet.env(made, request))
            assert not await them.node.start(pod)
            assert them.cpus("web") == own
            await them.node.runtime.remove_pod(them.node.runtime.pod("web"))


async def test_of_two_claims_over_one_budget_the_first_keeps_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        first = await them.allocate("first", cpu("numa1", "3"))
        second = await them.allocate("second", cpu("numa1", "3"), pods=("uid-db",))
        await them.kubelet.prepare("uid-web", first)
        with pytest.raises(PrepareError, match="numa1 lacks 2 CPUs: 1 free, 3 asked; CPUs there"):
            await them.kubelet.prepare("uid-db", second)
        assert held(them) == {"first/cpu/numa1": "4-6"}
        (event,) = them.events
        assert event.about == Subject.claim("default", "second", "uid-second")
        await them.kubelet.unprepare("uid-web")
        await them.kubelet.prepare("uid-db", second)
        assert held(them) == {"second/cpu/numa1": "4-6"}


async def test_a_claim_that_is_asked_for_twice_at_once_is_held_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1", "2500m"))
        arrived = asyncio.Barrier(2)

        async def together(request: Any) -> None:
            if "resourceclaims" in request.path:
                await arrived.wait()

        them.server.before = together
        await asyncio.gather(*(them.kubelet.prepare(each, made) for each in ("a", "b")))
        assert held(them) == {"fast/cpu/numa1": "4-5"}
        assert [each["value"] for each in them.kubelet.env(made)] == ["4-5"]


async def test_a_claim_that_is_not_held_is_given_back_already(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        known = them.kubelet.claims["uid-fast"]
        await them.kubelet.unprepare("uid-web")
        them.kubelet.claims["uid-fast"] = known  # the answer was lost: it asks again
        await them.kubelet.unprepare("uid-web")
        assert not held(them)


async def test_a_claim_that_is_deleted_while_its_pod_starts_is_held_until_it_is_given_back(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        await them.server.resources.delete("resourceclaims", "fast", "default")
        assert not await them.start("web", them.kubelet.env(made))
        assert them.cpus("web") == "4-5"
        await them.end("web")
        assert not held(them)


async def test_a_claim_of_another_namespace_is_another_claim(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        made["metadata"]["namespace"] = "shop"
        with pytest.raises(PrepareError, match="not found"):
            await them.kubelet.prepare("uid-web", made)
        assert not held(them)


async def test_a_claim_that_is_given_back_in_use_ends_with_its_container(tmp_path: Path) -> None:
    """Its pod was deleted by force. Another allocation of the claim must wait for its CPUs."""
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        assert not await them.start("web", them.kubelet.env(made))
        await them.kubelet.unprepare("uid-web")
        assert held(them) == {"fast/cpu/numa1": "4-5"}
        assert not [*them.kubelet.cdi.iterdir()]
        moved = await them.allocate("fast", cpu("numa2", "3"), pods=("uid-next",))
        with pytest.raises(PrepareError, match="prepared already, with another allocation"):
            await them.kubelet.prepare("uid-next", moved)
        await them.node.runtime.stop_pod(them.node.runtime.pod("web"))
        assert not held(them)
        await them.kubelet.prepare("uid-next", moved)
        assert held(them) == {"fast/cpu/numa2": "8-10"}


@pytest.mark.parametrize("runs", [True, False], ids=["it runs already", "it is still to come"])
async def test_a_daemon_that_is_restarted_between_prepare_and_create_knows_the_claim(
    runs: bool, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        env = them.kubelet.env(made)
    async with cluster(tmp_path, before=[as_it_ran("web", env)] * runs) as them:
        them.server.disturb = lambda request: (
            Answer(status=503, body="away") if "resourceclaims" in request.path else None
        )
        if not runs:
            assert not await them.start("web", env)
        assert held(them) == {"fast/cpu/numa1": "4-5"}
        assert them.cpus("web") == "4-5"


async def test_a_claim_is_not_handed_on_while_nobody_can_say_that_it_was(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        env = them.kubelet.env(made)
        await them.allocate("fast", cpu("numa1"), pods=("uid-next",))
        them.server.disturb = lambda request: (
            Answer(status=503, body="away") if "resourceclaims" in request.path else None
        )
        (error,) = await them.start("next", env)
        assert error == "default/next/main: claim default/fast: 503: away"
        them.server.disturb = lambda _: None
        await them.node.runtime.remove_pod(them.node.runtime.pod("next"))
        assert not await them.node.start(as_it_ran("next", env))
        assert them.cpus("next") == "4-5"


async def test_claims_of_one_pod_wait_for_an_api_server_together(tmp_path: Path) -> None:
    """The kubelet gives up after 45 s, however many there are."""
    async with cluster(tmp_path) as them:
        made = [await them.allocate(f"c{n}", cpu(f"numa{n}", "1")) for n in range(4)]
        asked = asyncio.Barrier(len(made))

        async def together(request: Any) -> None:
            if "resourceclaims" in request.path:
                await asked.wait()

        them.server.before = together
        await them.kubelet.prepare("uid-web", *made)
        assert len(held(them)) == 4


async def test_the_owner_of_a_claim_hears_that_it_has_lost_cpus(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1", "3"))
        await them.kubelet.prepare("uid-web", made)
        node, events = them.node.daemon.node, them.node.daemon.events
        machine = node.view.layout.machine
        few = with_cpus(machine, machine.online - CPUSet.parse("4"))
        await events.reconfigure(machine=few, instead_of=machine)
        node.catch_up()
        assert held(them) == {"fast/cpu/numa1": "5-7"}
        assert [each["value"] for each in them.kubelet.env(made)] == ["5-7"]
        assert not them.events
        fewer = with_cpus(machine, machine.online - CPUSet.parse("4-5"))
        await events.reconfigure(machine=fewer, instead_of=few)
        node.catch_up()
        assert held(them) == {"fast/cpu/numa1": "6-7"}
        (event,) = them.events
        assert event.about == Subject.claim("default", "fast", "uid-fast")
        assert event.text == "claim default/fast (cpu) has 2 of 3 CPUs of numa1: others are offline"
        assert [each["value"] for each in them.kubelet.env(made)] == ["6-7"]

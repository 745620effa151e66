"""What would be if pods came."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Created, Reconfigured
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import ClaimedParts, HypotheticalContainer, HypotheticalPod, NodeView, WhatIf
from nri_policy.report import newcomer_report, plain, what_if_report
from nri_policy.workload.pod import Container, Pod
from tests.support import nodes
from tests.support.claims import part, user
from tests.support.engine_driver import EngineDriver

GIB = 1 << 30


def wanted(
    name: str, *cpus: int, replicas: int = 1, init: int = 0, sidecar: int = 0
) -> HypotheticalPod:
    """Return a Guaranteed pod of containers of so many milli-CPU, and init containers before."""

    def starts(pod_name: str) -> tuple[HypotheticalContainer, ...]:
        pod = Pod(
            id=f"id-{pod_name}",
            uid=f"uid-{pod_name}",
            name=pod_name,
            namespace="default",
            qos=QoS.GUARANTEED,
            labels={},
            annotations={},
        )

        def one(name: str, milli: int) -> Container:
            return nodes.container(milli, pod=pod, name=name)

        inits = (
            [HypotheticalContainer(container=one("init", init), init=True, to_end=True)]
            if init
            else []
        )
        if sidecar:
            inits.append(
                HypotheticalContainer(container=one("side", sidecar), init=True, to_end=False)
            )
        return (
            *inits,
            *(
                HypotheticalContainer(container=one(f"c{i}", each), init=False, to_end=False)
                for i, each in enumerate(cpus)
            ),
        )

    return HypotheticalPod(namespace="default", name=name, replicas=replicas, starts=starts)


def tried(
    driver: EngineDriver, *pods: HypotheticalPod, devices: dict[str, int] | None = None
) -> Any:
    trial = WhatIf(driver.engine.fork(), devices=devices)
    for pod in pods:
        for _ in trial.run(pod):
            pass
    result = trial.result()
    newcomers = {name: newcomer_report(each) for name, each in result.newcomers.items()}
    return plain(what_if_report(result, newcomers))


def cpus(document: Any) -> dict[str, str]:
    return {name: fields["cpus"] for name, fields in document["containers"].items()}


def test_a_pod_goes_where_it_would_be_placed_and_nothing_changes() -> None:
    driver = EngineDriver()
    guest = nodes.best_effort()
    driver.create(guest)
    before = driver.engine.state.snapshot()
    document = tried(driver, wanted("new", 2000, 3000))
    assert driver.engine.state.snapshot() == before
    assert document["fits"]
    assert document["pods"] == [
        {"pod": "default/new", "replicas": 1, "fit": 1, "more": True, "misfits": []}
    ]
    assert cpus(document) == {"default/new/c0": "8-9", "default/new/c1": "12-14"}
    assert document["containers"]["default/new/c0"] == {
        "qos": "Guaranteed",
        "sort": "normal",
        "pool": "NUMA node #2",
        "cpus": "8-9",
        "exclusive": "8-9",
        "shared_milli": 0,
        "quota": "none (exclusive)",
        "isolated": "",
        "mems": "2",
        "shares": 2048,
        "state": "created",
        "error": None,
        "outcome": "placed",
        "summary": "placed: 2 exclusive CPUs on NUMA node #2, because NUMA nodes #2 and #3"
        " are equally good, and the lowest number wins",
        "why": "NUMA nodes #2 and #3 are equally good, and the lowest number wins",
        "decided_by": "id",
        "misfit": None,
    }
    assert document["changes"] == {}


def test_replicas_come_until_one_does_not_fit() -> None:
    driver = EngineDriver()
    document = tried(driver, wanted("web", 4000, replicas=5))
    (web,) = document["pods"]
    assert (web["replicas"], web["fit"], web["more"]) == (5, 3, False)
    assert not document["fits"]
    assert [*document["containers"]] == [f"default/web-{i}/c0" for i in (1, 2, 3, 4)]
    refused = document["containers"]["default/web-4/c0"]
    assert refused["state"] == "error"
    assert web["refusal"] == refused["error"]
    assert "4 exclusive CPUs" in document["containers"]["default/web-4/c0"]["error"]


def test_who_would_have_to_change_is_told_before_and_after() -> None:
    driver = EngineDriver("package:1 core:4")
    guest = nodes.best_effort()
    driver.create(guest)
    document = tried(driver, wanted("new", 2000))
    held = {"exclusive": "", "shared_milli": 0, "isolated": ""}
    others = {"pool": "socket #0", "mems": "0", **held}
    assert document["changes"] == {
        guest.full_name: {
            "before": {"cpus": "1-3", **others},
            "after": {"cpus": "3", **others},
        }
    }


def test_an_init_container_is_gone_before_the_next_comes_and_a_sidecar_is_not() -> None:
    driver = EngineDriver("package:1 core:4")
    document = tried(driver, wanted("new", 1000, init=3000, sidecar=2000))
    assert cpus(document) == {
        "default/new/init": "1-3",
        "default/new/side": "1-2",
        "default/new/c0": "3",
    }
    assert document["containers"]["default/new/init"]["state"] == "removed"
    assert document["fits"]


def test_after_a_refused_init_container_nothing_of_the_pod_comes() -> None:
    document = tried(EngineDriver("package:1 core:4"), wanted("new", 1000, init=9000))
    assert [*document["containers"]] == ["default/new/init"]
    assert document["pods"][0]["fit"] == 0


def test_a_refused_container_leaves_the_rest_of_its_pod_to_go_on() -> None:
    document = tried(EngineDriver("package:1 core:4"), wanted("new", 9000, 1000))
    states = {name: fields["state"] for name, fields in document["containers"].items()}
    assert states == {"default/new/c0": "error", "default/new/c1": "created"}
    assert document["pods"][0]["fit"] == 0


def test_a_name_that_is_taken_gets_a_number() -> None:
    driver = EngineDriver()
    there = nodes.container(1000)
    driver.create(there)
    document = tried(driver, wanted(there.pod.name, 1000), wanted(there.pod.name, 1000))
    names = [f"default/{there.pod.name}-{i}/c0" for i in (1, 2)]
    assert [*document["containers"]] == names
    assert document["fits"]


def test_it_stops_after_each_container_for_others() -> None:
    trial = WhatIf(EngineDriver().engine)
    steps = trial.run(wanted("new", 1000, 1000, replicas=2))
    next(steps)
    assert len(trial.result().newcomers) == 1
    assert len([*steps]) == 3


def test_a_fork_lives_on_its_own() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(2000))
    twin, before = driver.engine.fork(), driver.engine.state.snapshot()
    assert twin.state.snapshot() == before
    driver.create(nodes.container(2000))
    assert twin.state.snapshot() == before


GPU = "nvidia.com/gpu"


def test_pods_take_the_devices_that_are_left() -> None:
    pods = replace(wanted("train", 1000, replicas=3), devices={GPU: 2})
    shown = tried(EngineDriver(), pods, devices={GPU: 4})
    assert (shown["fits"], shown["pods"][0]["fit"]) == (False, 2)
    refused = shown["containers"]["default/train-3/c0"]
    assert refused["error"] == f"it asks for 2 {GPU}, and 0 are left"
    assert refused["state"] == "error"
    fits = tried(EngineDriver(), replace(pods, replicas=2), devices={GPU: 4})
    assert (fits["fits"], fits["warnings"]) == (True, [])


def test_a_refusal_names_the_container_of_several() -> None:
    (both,) = tried(EngineDriver(), wanted("new", 1000, 99_000))["pods"]
    assert both["refusal"].startswith("c1: no pool has room for 99 exclusive CPUs")


def test_a_device_that_the_kubelet_does_not_have_is_missing() -> None:
    shown = tried(EngineDriver(), replace(wanted("train", 1000), devices={GPU: 1}), devices={})
    assert (
        shown["containers"]["default/train/c0"]["error"] == f"it asks for 1 {GPU}, and 0 are left"
    )


def test_devices_that_nobody_counts_are_said_to_be_ignored() -> None:
    shown = tried(EngineDriver(), replace(wanted("train", 1000), devices={GPU: 1}))
    assert shown["fits"]
    assert shown["warnings"] == [
        (
            f"devices were ignored: {GPU}: without agent.podResourceAPI the daemon does not know"
            " how"
            " many are left"
        )
    ]


def with_pages(pod: HypotheticalPod, *amounts: int, size: int = GIB) -> HypotheticalPod:
    """Return *pod* with so many huge pages for each of its containers."""

    def starts(name: str) -> tuple[HypotheticalContainer, ...]:
        return tuple(
            replace(
                start,
                container=replace(
                    start.container,
                    resources=replace(
                        start.container.resources, hugepages=((size, count * size),) * bool(count)
                    ),
                ),
            )
            for start, count in zip(pod.starts(name), amounts, strict=True)
        )

    return replace(pod, starts=starts)


@pytest.mark.parametrize("size", [2 << 20, GIB])
def test_a_pod_with_huge_pages_that_the_machine_lacks_does_not_fit(size: int) -> None:
    shown = tried(EngineDriver(), with_pages(wanted("dpdk", 1000), 2, size=size))
    assert (shown["fits"], shown["pods"][0]["fit"]) == (False, 0)
    error = f"it asks for 2 × {'1Gi' if size == GIB else '2Mi'} huge pages, and 0 are left"
    assert shown["containers"]["default/dpdk/c0"]["error"] == error


def test_pods_take_the_huge_pages_that_are_left_on_the_node() -> None:
    driver = EngineDriver("package:1 numa:2(memory=32GiB hugepages-1Gi=4) core:4 pu:1")
    shown = tried(driver, with_pages(wanted("dpdk", 1000, replicas=3), 3))
    assert shown["pods"][0]["fit"] == 2
    error = "it asks for 3 × 1Gi huge pages, and 2 are left"
    assert shown["containers"]["default/dpdk-3/c0"]["error"] == error


def test_the_huge_pages_of_all_containers_that_run_at_once_count() -> None:
    def fits(*pages: int) -> bool:
        driver = EngineDriver("package:1 numa:1(memory=32GiB hugepages-1Gi=4) core:8 pu:1")
        pod = wanted("dpdk", 1000, 1000, init=1000, sidecar=1000)
        return bool(tried(driver, with_pages(pod, *pages))["fits"])

    # an init container, a sidecar, and two others
    assert fits(4, 0, 2, 2)
    assert fits(4, 1, 2, 1)
    assert not fits(4, 1, 2, 2)
    assert not fits(5, 0, 0, 0)


def test_a_container_that_shares_has_the_reason() -> None:
    document = tried(EngineDriver(), wanted("whole", 2000), wanted("part", 500))
    assert document["containers"]["default/whole/c0"].get("because") is None
    assert document["containers"]["default/part/c0"]["because"] == "it asks for less than one CPU"


def test_the_pods_of_a_stateful_set_have_numbers_as_in_the_cluster() -> None:
    one, several = (replace(wanted("db", 1000, replicas=n), ordinal=0) for n in (1, 2))
    assert [*tried(EngineDriver(), one)["containers"]] == ["default/db-0/c0"]
    names = [*tried(EngineDriver(), several)["containers"]]
    assert names == ["default/db-0/c0", "default/db-1/c0"]


def test_what_of_a_pods_claims_was_left_out_is_said_once() -> None:
    def claim(_name: str, _view: NodeView) -> ClaimedParts:
        return ClaimedParts(warnings=("claim gpu was left out",))

    pods = replace(wanted("new", 1000, replicas=2), claim=claim)
    assert tried(EngineDriver(), pods)["warnings"] == ["claim gpu was left out"]


def test_what_a_container_uses_of_its_pods_claims_is_noted() -> None:
    own = part(2000, 1)

    def starts(_name: str) -> tuple[HypotheticalContainer, ...]:
        return (HypotheticalContainer(container=user(own, name="c0"), init=False, to_end=False),)

    def claim(_name: str, _view: NodeView) -> ClaimedParts:
        return ClaimedParts(prepared=((own,),), uses={"c0": (own.id,)})

    pod = HypotheticalPod(namespace="default", name="new", replicas=1, starts=starts, claim=claim)
    (note,) = tried(EngineDriver(), pod)["notes"]
    assert note.endswith("/c0: 2 CPU of numa1 by claim default/cpus (cpu)")


@pytest.mark.parametrize(("seen", "pool"), [("0-15", "root"), ("6-7", "NUMA node #1"), ("", "")])
def test_who_is_not_pinned_is_in_the_pool_around_its_cpus_before_a_change(
    seen: str, pool: str
) -> None:
    driver, container = EngineDriver(pinCPU=False), nodes.container(2000)
    driver.handle(Created(container=container))
    found = {container.id: (CPUSet.parse(seen), CPUSet([0]))}
    trial = WhatIf(driver.engine.fork(), found=found)
    assert trial.reconfigure(Reconfigured(settings=nodes.settings()))
    ((before, after),) = trial.result().changes.values()
    assert (before.pool, str(before.cpus)) == (pool, seen)
    assert (after.pool, str(after.cpus)) == ("NUMA node #1", "4-5")

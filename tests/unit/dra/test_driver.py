"""The daemon as a DRA driver, between a kubelet, an API server and a runtime."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_policy.dra.resource_slice import CPU, slice_name
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kube.events import Subject
from nri_policy.node import Placed
from nri_policy.workload.claim import DRIVER
from tests.support import resources
from tests.support.apiserver import Answer
from tests.support.daemon import served
from tests.support.dra_kubelet import DRAKubelet, PrepareError

from .driver_cluster import Cluster, as_it_ran, cluster, cpu
from .waiting import until


async def test_a_claim_goes_all_the_way_to_a_container(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        (device,) = them.kubelet.claims["uid-fast"].devices
        assert [*device.request_names] == ["cpu"]
        assert (device.pool_name, device.device_name) == ("node-a", "numa1")
        assert device.share_id == "share-numa1"
        assert not await them.start("web", them.kubelet.env(made), "2")
        assert them.cpus("web") == "4-5"
        assert not await them.start("other", [], "3")
        assert them.cpus("other") not in {"4-6", "5-7"}
        await them.end("web")
        assert not them.node.daemon.node.view.claims
        assert not [*them.kubelet.cdi.glob("*")]


async def test_the_gpu_of_a_claim_is_named_beside_its_cpus(tmp_path: Path) -> None:
    """Without hints, and whatever its driver publishes; one that is only watched is not."""
    watched = resources.result("watch", "gpu-1", adminAccess=True)
    async with cluster(tmp_path) as them:
        gpu = resources.result("gpu", "gpu-3")
        made = await them.allocate("near", cpu("numa1"), gpu, watched)
        await them.kubelet.prepare("uid-web", made)
        assert not await them.start("web", them.kubelet.env(made), "2")
        placed = them.node.daemon.node.view.by_name()["default/web/main"]
        note = "2 CPU of numa1 by claim default/near (cpu), beside gpu.example.com gpu-3"
        assert note in placed.explanation.notes


async def test_each_container_has_the_requests_that_it_names(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        both = cpu("numa1", "1", "a"), cpu("numa2", "2", "b/near")
        made = await them.allocate("both", *both)
        await them.kubelet.prepare("uid-web", made)
        await them.kubelet.prepare("uid-again", made)
        one = them.kubelet.env(made, "b")
        assert [each["value"] for each in one] == ["8-9"]
        assert not await them.start("web", one)
        assert them.cpus("web") == "8-9"
        assert {each["value"] for each in them.kubelet.env(made)} == {"4", "8-9"}


async def test_what_ordinary_containers_take_is_published_and_claims_cause_no_write(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as them:
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        writes = len(them.server.writes())
        made = await them.allocate("fast", cpu("numa1", "4"))
        await them.kubelet.prepare("uid-web", made)
        assert len(them.server.writes()) == writes
        assert not await them.start("other", [], "3")
        (taken,) = [n for n in range(4) if them.cpus("other")[0] in f"{4 * n}{4 * n + 1}"]
        left = {f"numa{n}": 3 if n == 0 else 4 for n in range(4)}
        left[f"numa{taken}"] -= 3
        await them.publishes(**{name: each for name, each in left.items() if each})
        await them.node.runtime.stop_pod(them.node.runtime.pod("other"))
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)


async def test_a_restarted_kubelet_gets_the_same_answers_without_the_api_server(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"), cpu("numa2", "1500m", "more"))
        await them.kubelet.prepare("uid-web", made)
        them.server.disturb = lambda request: (
            Answer(status=503, body="away") if "resourceclaims" in request.path else None
        )
        await them.kubelet.restart()


async def test_an_older_kubelet_asks_in_the_older_version(tmp_path: Path) -> None:
    async with cluster(tmp_path, registers=False) as them:
        kubelet = DRAKubelet(tmp_path, ("v1beta1.DRAPlugin",))
        await kubelet.register()
        made = await them.allocate("fast", cpu("numa1"))
        await kubelet.prepare("uid-web", made)
        assert kubelet.env(made)[0]["value"] == "4-5"


REFUSED = [
    (cpu("numa9"), {}, "has the device numa9, which this node has not"),
    (cpu("numa1", pool="node-b"), {}, "is allocated on node-b"),
    (cpu("numa1", "0"), {}, "asks for nothing"),
    (cpu("numa1", "-1"), {}, "-1"),
    (cpu("numa1", "9"), {}, "numa1 lacks 5 CPUs: 4 free, 9 asked"),
    (cpu("numa1", consumedCapacity={}), {}, "gate DRAConsumableCapacity"),
    (cpu("numa1", adminAccess=True), {}, "adminAccess"),
    (cpu("numa1", driver="gpu.example.com"), {}, "has no device of placement.nri"),
    (cpu("numa1"), {"allocation": None}, "is not allocated"),
    (cpu("numa1"), {"reservedFor": []}, "reserved for no pod"),
    (
        cpu("numa1"),
        {"reservedFor": [{"resource": "podgroups", "name": "gang", "uid": "u"}]},
        "reserved for podgroups",
    ),
    (
        cpu("numa1"),
        {"reservedFor": [{"resource": "pods", "name": n, "uid": n} for n in ("a", "b")]},
        "shared by several pods: a, b",
    ),
    (
        cpu("numa1"),
        {
            "allocation": {
                "devices": {
                    "results": [cpu("numa1")],
                    "config": [{"source": "FromClaim", "opaque": {"driver": DRIVER}}],
                }
            }
        },
        "takes none",
    ),
]


@pytest.mark.parametrize(("result", "status", "why"), REFUSED, ids=[each[2] for each in REFUSED])
async def test_a_claim_that_cannot_be_prepared_keeps_no_other_back(
    result: dict[str, Any], status: dict[str, Any], why: str, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as them:
        bad = await them.allocate("bad", result, **status)
        good = await them.allocate("good", cpu("numa2"))
        with pytest.raises(PrepareError, match=why.replace("(", ".").replace(")", ".")):
            await them.kubelet.prepare("uid-web", bad, good)
        assert [*them.kubelet.claims] == ["uid-good"]
        assert {each.container.claim_part.claim for each in _claims(them)} == {"uid-good"}
        (event,) = them.events
        assert event.about == Subject.claim("default", "bad", "uid-bad")
        assert why in event.text


def _claims(them: Cluster) -> list[Placed]:
    return [*them.node.daemon.node.view.claims.values()]


async def test_another_claim_of_the_same_name_is_not_prepared(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        old = {**made, "metadata": {**made["metadata"], "uid": "uid-old"}}
        with pytest.raises(PrepareError, match="another one by now"):
            await them.kubelet.prepare("uid-web", old)
        await them.server.resources.delete("resourceclaims", "fast", "default")
        with pytest.raises(PrepareError, match="not found"):
            await them.kubelet.prepare("uid-web", made)


async def test_a_variable_that_a_pod_set_itself_gains_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        env = them.kubelet.env(made)
        (error,) = await them.start("thief", env)
        assert "claim default/fast: it is reserved for another pod" in error
        unknown = [{"name": "PLACEMENT_NRI_CLAIM_who_cpu", "value": "4-5"}]
        assert not await them.start("guess", unknown)
        assert them.cpus("guess") != "4-5"
        assert not await them.start("web", env)
        assert them.cpus("web") == "4-5"


async def test_a_claim_that_was_handed_on_is_the_next_pods(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        await them.allocate("fast", cpu("numa1"), pods=("uid-next",))
        assert not await them.start("next", them.kubelet.env(made))
        assert them.cpus("next") == "4-5"


async def test_claims_that_containers_use_outlive_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The root-owned CDI file knows what the claim has; the container's pod is the claim's."""
    two = cpu("numa1", "2500m", "a"), cpu("numa2", "1", "b")
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", *two)
        idle = await them.allocate("idle", cpu("numa1", "1"), pods=("uid-idle",))
        for each in (made, idle):
            await them.kubelet.prepare(each["status"]["reservedFor"][0]["uid"], each)
        shown, answers = them.kubelet.env(made, "a"), them.kubelet.claims["uid-fast"].devices
        held = {each.container.id: each.grant for each in _claims(them)}
        assert held.pop("claim:uid-idle:cpu:numa1")
    shutil.rmtree(tmp_path / "store")
    before = [as_it_ran("web", shown), as_it_ran("thief", shown)]
    async with cluster(tmp_path, before=before) as them:
        assert {each.container.id: each.grant for each in _claims(them)} == held, (
            "of both its requests"
        )
        assert them.cpus("web") == "4-7", "its own, and those that it shares"
        assert CPUSet.parse(them.cpus("thief")).isdisjoint(CPUSet.parse("4-5,8"))
        await until(lambda: [each.name for each in them.kubelet.cdi.iterdir()] == [_file("fast")])
        await them.allocate("fast", *two)
        await them.kubelet.prepare("uid-web", made)
        assert them.kubelet.claims["uid-fast"].devices == answers
        await them.end("web")
        assert not _claims(them)
        synchronized = them.node.runtime.synchronizations
        them.node.daemon._session.reconnect()
        await them.node.runtime.synchronized(after=synchronized)
        assert not _claims(them)
    assert [vars(each)["claims"] for each in caplog.records if each.msg == "claims-recovered"] == [
        "default/fast"
    ]


def _file(claim: str) -> str:
    return f"{DRIVER}-uid-{claim}.json"


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": [{"annotations": {"a": 1}}]}'])
async def test_a_cdi_file_that_makes_no_sense_says_nothing(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cdi" / _file("fast")
    path.parent.mkdir()
    path.write_text(text)
    shown = [{"name": "PLACEMENT_NRI_CLAIM_uid_fast_cpu", "value": "4-5"}]
    async with cluster(tmp_path, before=[as_it_ran("web", shown)]) as them:
        assert not _claims(them)
        await until(lambda: not path.exists())
    warnings = [each.msg for each in caplog.records if each.levelno >= logging.WARNING]
    assert warnings == ["cdi-not-read"]


# ---- the slice


async def test_a_slice_has_its_owner_devices_and_attributes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        made = them.slice
        assert made is not None
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-of-the-node"
        device = made["spec"]["devices"][1]
        assert device["allowMultipleAllocations"] is True
        policy = {"default": "1", "validRange": {"min": "1m"}}
        assert device["capacity"][CPU] == {"value": "4", "requestPolicy": policy}
        assert device["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
        keys = {tuple(each["attributes"]) for each in made["spec"]["devices"]}
        assert len(keys) == 1, "a selector that reads a missing key ends an allocation"


def written(them: Cluster) -> dict[str, float]:
    """Return how often the slice was written, by result, as it is counted."""
    (made,) = [
        metric
        for make in them.node.daemon.metrics.collect()
        if (metric := make()).name == "nri_policy_dra_slice_writes"
    ]
    return {
        each.labels["result"]: each.value
        for each in made.samples
        if each.name.endswith("_total") and each.value
    }


async def test_writes_of_the_slice_are_counted_by_their_result(tmp_path: Path) -> None:
    async with cluster(tmp_path, registers=False) as them:
        them.server.disturb = lambda request: (
            Answer(status=503, body="away") if request.method != "GET" else None
        )
        await them.kubelet.register()
        await until(lambda: bool(written(them)))
        assert written(them) == {"failed": 1.0}
        them.server.disturb = lambda _: None
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        await until(lambda: "written" in written(them))


async def test_fields_that_the_api_server_drops_take_the_slice_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, gates=resources.DEFAULT_GATES) as them:
        publisher = them.node.daemon.claim_driver.publisher
        assert publisher is not None
        await until(lambda: bool(publisher.problem))
        assert them.slice is None
        assert "allowMultipleAllocations, requestPolicy" in publisher.problem
        (problem,) = them.node.daemon.claim_driver.problems()
        assert "DRAConsumableCapacity is off" in problem
        assert written(them) == {"dropped": 1.0}
        asked = len(them.server.requests)
        assert not await them.start("other", [], "3")
        await asyncio.sleep(0)
        assert len(them.server.requests) == asked, "it is asked again hourly"
    assert [each.msg for each in caplog.records if "slice" in each.msg] == ["slice-not-published"]


async def test_a_slice_that_somebody_deletes_or_changes_is_put_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        await until(lambda: any(r.query.get("watch") for r in them.server.requests))
        await them.server.resources.delete("resourceslices", slice_name("node-a"))
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)


async def test_before_the_kubelet_knows_the_driver_nothing_is_published(tmp_path: Path) -> None:
    async with cluster(tmp_path, registers=False) as them:
        await until((tmp_path / "plugins_registry" / f"{DRIVER}-reg.sock").exists)
        (problem,) = them.node.daemon.claim_driver.problems()
        assert "has not registered" in problem
        assert not them.server.writes()
        await them.kubelet.register()
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        assert not [*them.node.daemon.claim_driver.problems()]


async def test_nothing_is_published_while_the_kubelets_cpu_manager_is_static(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.daemon.claim_driver._BACKOFF", lambda _failures: 0.0)
    silent, static, none = None, True, False
    said: Iterator[bool | None] = iter([silent, static, none, static])
    answered = asyncio.Event()

    async def manages_cpus() -> bool | None:
        await answered.wait()
        return next(said)

    async with cluster(tmp_path, manages_cpus=manages_cpus) as them:
        driver = them.node.daemon.claim_driver
        assert [*driver.problems()] == [
            "dra: no CPUs are published: the kubelet does not say if its CPU manager is on"
        ]
        answered.set()
        await until(lambda: "CPU manager is static" in "".join(driver.problems()))
        assert not them.server.writes()
        (event,) = them.events
        assert (event.about, event.reason) == (Subject.node("node-a"), "CPUsNotPublished")
        assert "cpuManagerPolicy: none" in event.text
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)  # it is bound: somebody has to
        await them.kubelet.restart()
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        assert not [*driver.problems()]
        await them.kubelet.restart()
        await until(lambda: them.slice is None)
    assert [each.msg for each in caplog.records].count("cpus-not-published") == 2


async def test_what_keeps_the_driver_from_being_served_is_said(tmp_path: Path) -> None:
    async with served(tmp_path, dra={"enabled": True}) as node:
        (problem,) = node.daemon.claim_driver.problems()
        assert problem == "dra: no cluster is known: neither in a pod nor --kubeconfig"
    async with cluster(tmp_path, registers=False, pinCPU=False) as them:
        (problem,) = them.node.daemon.claim_driver.problems()
        assert problem == "dra: no CPUs are published: pinCPU is false"


async def test_a_socket_that_cannot_be_made_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.daemon.claim_driver._BACKOFF", lambda _failures: 0.0)
    (tmp_path / "plugins_registry").touch()
    async with cluster(tmp_path, registers=False) as them:
        driver = them.node.daemon.claim_driver
        await until(lambda: "plugins_registry" in "".join(driver.problems()))
        (tmp_path / "plugins_registry").unlink()
        await them.kubelet.register()
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        assert not [*driver.problems()]
    assert [each.msg for each in caplog.records].count("driver-not-served") == 1


async def test_a_driver_that_is_turned_off_waits_for_its_claims(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        made = await them.allocate("fast", cpu("numa1"))
        await them.kubelet.prepare("uid-web", made)
        await them.publishes(numa0=3, numa1=4, numa2=4, numa3=4)
        await them.reconfigure(dra={"enabled": False})
        await until(lambda: them.slice is None)
        (problem,) = them.node.daemon.claim_driver.problems()
        assert problem == "dra: claims that are still to be given back: claim default/fast (cpu)"
        await them.kubelet.unprepare("uid-web")
        await until(lambda: not (tmp_path / "plugins_registry" / f"{DRIVER}-reg.sock").exists())
        assert not [*them.node.daemon.claim_driver.problems()]


async def test_without_the_setting_there_is_no_driver(tmp_path: Path) -> None:
    async with cluster(tmp_path, registers=False, dra={"enabled": False}) as them:
        assert not await them.start("other", [], "3")
        assert not (tmp_path / "plugins_registry").exists()
        assert not them.server.requests

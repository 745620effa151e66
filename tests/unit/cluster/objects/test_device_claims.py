"""Devices that pods claim: what is asked for, and which nodes have it free."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.objects.device_claims import (
    CLAIM,
    CLASS,
    SLICE,
    TEMPLATE,
    DeviceClaims,
)
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.pod import read_pod
from tests.support.cluster_api import ClusterAPI
from tests.unit.cli.test_cluster_questions import named, run, write
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, pod_spec

GPU, NIC = "gpu.example.com", "nic.example.com"
NODES = ("n1", "n2", "n3")


def requests(*wanted: tuple[str, int], **more: Any) -> Object:
    made = [{"name": "r", "exactly": {"deviceClassName": each, "count": n}} for each, n in wanted]
    return {"devices": {"requests": made, **more}}


def template(name: str, spec: Object) -> Object:
    return {"kind": TEMPLATE, "metadata": {"name": name}, "spec": {"spec": spec}}


def claim(name: str, *devices: str, **more: Any) -> Object:
    """A claim for a GPU, with devices of n1."""
    given = {"request": "r", "driver": GPU, "pool": "n1", **more}
    results = [{**given, "device": each} for each in devices]
    status = {"status": {"allocation": {"devices": {"results": results}}}} if devices else {}
    return {"kind": CLAIM, "metadata": {"name": name}, "spec": requests((GPU, 1)), **status}


def device_class(name: str, *expressions: str) -> Object:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"kind": CLASS, "metadata": {"name": name}, "spec": {"selectors": selectors}}


def devices_of(at: str | None, *names: str, generation: int = 1, driver: str = GPU) -> Object:
    spec = {
        "driver": driver,
        "pool": {"name": at or "net", "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": each} for each in names],
        **({"allNodes": True} if at is None else {"nodeName": at}),
    }
    name = f"{at}-{driver}-{generation}"
    return {"kind": SLICE, "metadata": {"name": name}, "spec": spec}


OF_GPU = device_class(GPU, f'device.driver == "{GPU}" && device.attributes["x"].y == 1')
TWO = template("two", requests((GPU, 2)))
HERE = [devices_of("n1", "a", "b", "c"), devices_of("n2", "a")]


def said(*objects: Object, name: str = "two", own: bool = False) -> list[str]:
    """What is said of a pod that names a claim of its own, or else a template."""
    known = DeviceClaims()
    for each in objects:
        known.add(each["kind"], each, "")
    key = "resourceClaimName" if own else "resourceClaimTemplateName"
    spec = pod_spec({"cpu": 1}, resourceClaims=[{"name": "gpu", key: name}])
    pod = read_pod({"metadata": {"name": "p"}, "spec": spec}, "")
    return [*known.describe("default", pod.claims, NODES)]


def text(rest: str) -> list[str]:
    return [f"claim gpu asks for 2 {GPU}{rest}"]


def test_devices_are_free_that_no_claim_has() -> None:
    assert said(TWO, OF_GPU, *HERE) == text(": free on 1 of 3 nodes; most on n1, 3 of 3")
    taken = said(TWO, OF_GPU, *HERE, claim("x", "a", "c"), claim("waits"))
    assert taken == text(": free on no node; most on n1, 1 of 3")
    for shared in ({"shareID": "s"}, {"adminAccess": True}):
        of_others = claim("x", "a", "c", **shared)
        assert said(TWO, OF_GPU, *HERE, of_others)[0].endswith("most on n1, 3 of 3")


def test_only_the_newest_devices_of_single_nodes_that_are_there_count() -> None:
    old = devices_of("n1", "a", "b", "c", "d", generation=0)
    others = [devices_of(None, "a", "b"), devices_of("gone", *"abcde")]
    assert said(TWO, OF_GPU, old, *HERE, *others)[0].endswith("most on n1, 3 of 3")
    only = said(TWO, OF_GPU, *others, devices_of("n1", "a", "b", driver=NIC))
    assert only == text(": no node has such a device")


def test_one_of_several_alternatives_is_enough() -> None:
    wanted = [
        {"name": "a", "deviceClassName": NIC, "count": 2},
        {"name": "b", "deviceClassName": GPU},
    ]
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": wanted}]}}
    of_nic = device_class(NIC, f"device.driver == '{NIC}'")
    found = said(template("two", spec), OF_GPU, of_nic, *HERE, devices_of("n3", "x", driver=NIC))
    rest = "free on 2 of 3 nodes; most on n1, 3 of 3"
    assert found == [f"claim gpu asks for 2 {NIC} or 1 {GPU}: {rest}"]


def test_a_claim_of_its_own_is_named_with_its_devices() -> None:
    assert said(claim("own"), OF_GPU, *HERE, name="own", own=True) == [
        f"claim gpu asks for 1 {GPU}: free on 2 of 3 nodes; most on n1, 3 of 3"
    ]
    has = said(claim("own", "a", "b"), OF_GPU, *HERE, name="own", own=True)
    assert has == [f"claim gpu has its devices: a of {GPU}, b of {GPU} (pool n1)"]


@pytest.mark.parametrize(
    ("objects", "rest"),
    [
        ([OF_GPU], "; no ResourceSlice tells which nodes have that"),
        (HERE, f": there is no DeviceClass {GPU}"),
        (
            [*HERE, device_class("gpus.example.com")],
            f": there is no DeviceClass {GPU}; did you mean 'gpus.example.com'?",
        ),
        ([*HERE, device_class(GPU, "true")], f"; the DeviceClass {GPU} names no driver"),
    ],
)
def test_what_is_not_known_is_said(objects: list[Object], rest: str) -> None:
    assert said(TWO, *objects) == text(rest)


@pytest.mark.parametrize(("own", "kind"), [(True, CLAIM), (False, TEMPLATE)])
def test_a_claim_that_is_not_there_is_said(own: bool, kind: str) -> None:
    assert said(name="none", own=own) == [f"claim gpu: no {kind} none is known"]


def test_a_wrong_object_is_refused_with_the_place() -> None:
    wrong = template("two", {"devices": {"requests": [{"exactly": {"count": 2}}]}})
    with pytest.raises(DocumentError, match=r"spec\.spec\.devices\.requests"):
        said(wrong)


def asked_for() -> list[Object]:
    """A group of a file, with the template of its claims."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    made = group(pod_set(2, cpu=1), name="train")
    made["spec"]["podSets"][0]["template"]["spec"]["resourceClaims"] = claims
    return [named("PlacementGroup", made), TWO]


@pytest.mark.parametrize("status", [0, 403, 404, 500])
def test_explain_names_devices_of_files_and_of_a_live_cluster(tmp_path: Path, status: int) -> None:
    nodes = [named("Node", node(each)) for each in NODES]
    file = write(tmp_path / "group.yaml", *asked_for())
    cluster = write(tmp_path / "c.json", {"kind": "List", "items": [*nodes, OF_GPU, *HERE]})
    where = ("--levels", HOSTNAME, "-o", "json")
    note = "default/train, pod set main, " + text(": free on 1 of 3 nodes; most on n1, 3 of 3")[0]
    code, found = run("explain", "-f", file, "--cluster", cluster, *where)
    assert (code, note in found) == (0, True)

    async def live() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            for each in nodes:
                await api.put("nodes", each)
            for plural, each in (("deviceclasses", OF_GPU), ("resourceslices", HERE[0])):
                await api.put(plural, each)
            api.refuse = lambda _, path: status if "resource.k8s.io" in path else 0
            known = ("--kubeconfig", str(api.kubeconfig), *where)
            return await asyncio.to_thread(run, "explain", "-f", file, *known)

    code, found = asyncio.run(live())
    assert (code == 0) == (status != 500)
    assert (note in found) == (status == 0)
    assert ("no ResourceSlice tells" in found) == (status in {403, 404})

"""What is read of ResourceSlices, ResourceClaims and pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from nri_policy.dra.objects import (
    DeviceLocation,
    ObjectError,
    Use,
    read_claim,
    read_name,
    read_pod,
    read_slice,
)
from nri_policy.manifests.resource_claim import AllocationResult
from tests.support.resources import claim, pod, result, slice_

STANDARD = "resource.kubernetes.io"


def where(**attributes: Any) -> DeviceLocation:
    """Return where a device is that has these attributes."""
    made = slice_("s", {"d": {key.replace("__", "/"): each for key, each in attributes.items()}})
    return read_slice(Raw(json.dumps(made).encode())).devices["d"]


def test_a_slice_says_where_its_devices_are() -> None:
    devices = {"gpu-0": {f"{STANDARD}/numaNode": 1}, "gpu-1": {}}
    made = slice_("s", devices, pool="racks", generation=7, of=2)
    read = read_slice(Raw(json.dumps(made).encode()))
    assert (read.name, read.driver, read.pool) == ("s", "gpu.example.com", "racks")
    assert (read.generation, read.of, read.node) == (7, 2, "node-a")
    assert read.devices == {"gpu-0": DeviceLocation(node=1), "gpu-1": DeviceLocation()}


def test_standard_attributes_come_before_those_of_other_domains() -> None:
    assert where(**{"dra.net__numaNode": 3, f"{STANDARD}__numaNode": 1}) == DeviceLocation(node=1)
    assert where(numa=2, index=9) == DeviceLocation(node=2)
    assert where(**{"dra.cpu__numaNodeID": 4}) == DeviceLocation(node=4)
    assert where(pciAddr="0000:c1:00.0") == DeviceLocation(address="0000:c1:00.0")
    found = where(**{f"{STANDARD}__pciBusID": "0000:01:00.0", "gpu.x__pcieBusID": "0000:02:00.0"})
    assert found == DeviceLocation(address="0000:01:00.0")
    assert where(**{f"{STANDARD}__pcieRoot": "pci0000:c0"}) == DeviceLocation(root="pci0000:c0")


def test_of_a_list_the_first_is_the_devices_own() -> None:
    """KEP-6072: the others are as near, by the machine's table of distances."""
    assert where(**{f"{STANDARD}__numaNode": [5, 4, 6, 7]}) == DeviceLocation(node=5)
    assert where(**{f"{STANDARD}__pcieRoot": ["pci0000:c0", "pci0000:e0"]}).root == "pci0000:c0"


def test_an_attribute_of_another_type_says_nothing() -> None:
    assert where(numaNode="zero", pciBusID=7) == DeviceLocation()


def test_a_slice_of_no_node_has_no_node() -> None:
    made = slice_("s", {})
    del made["spec"]["nodeName"]
    made["spec"]["allNodes"] = True
    assert not read_slice(Raw(json.dumps(made).encode())).node


def test_a_claim_has_the_results_of_its_allocation() -> None:
    made = claim("c", result("gpu/big", "gpu-0", adminAccess=True, shareID="x"))
    read = read_claim(made)
    big = AllocationResult(
        request="gpu/big",
        driver="gpu.example.com",
        pool="node-a",
        device="gpu-0",
        admin_access=True,
        share="x",
    )
    assert (read.name, [*read.results]) == ("c", [big])
    assert [*read_claim(claim("c")).results] == [], "it is not allocated"


def test_claims_of_a_pod_are_found_by_name_by_template_and_by_extended_resource() -> None:
    extended = {
        "resourceClaimName": "web-extended-resources-x",
        "requestMappings": [
            {"containerName": "c1", "resourceName": "x/gpu", "requestName": "container-1-request-0"}
        ],
    }
    made = pod(
        "web",
        {"own": "shared"},
        {"c0": [{"name": "own"}, {"name": "made", "request": "gpu"}], "c1": []},
        resourceClaimStatuses=[{"name": "made", "resourceClaimName": "web-made-7"}],
        extendedResourceClaimStatus=extended,
    )
    made["spec"]["resourceClaims"].append({"name": "made", "resourceClaimTemplateName": "t"})
    made["spec"]["initContainers"] = [{"name": "i0", "resources": {"claims": [{"name": "own"}]}}]
    read = read_pod(made)
    assert read.uses == {
        "i0": [Use("shared", "")],
        "c0": [Use("shared", ""), Use("web-made-7", "gpu")],
        "c1": [Use("web-extended-resources-x", "container-1-request-0")],
    }
    assert read.names == ("shared", "web-made-7", "web-extended-resources-x")


def test_a_claim_that_was_not_made_yet_is_none() -> None:
    made = pod("web", {}, {"c0": [{"name": "made"}]})
    made["spec"]["resourceClaims"] = [{"name": "made", "resourceClaimTemplateName": "t"}]
    assert read_pod(made).names == ()


def test_what_makes_no_sense_is_an_error_that_names_the_field() -> None:
    bad = slice_("s", {"d": {}})
    bad["spec"]["pool"]["generation"] = "first"
    with pytest.raises(ObjectError, match=r"generation"):
        read_slice(Raw(json.dumps(bad).encode()))
    with pytest.raises(ObjectError, match=r"device"):
        read_claim(claim("c", {"request": "gpu", "driver": "d", "pool": "p"}))
    with pytest.raises(ObjectError, match=r"containers"):
        read_pod({"metadata": {"name": "x"}, "spec": {}})
    with pytest.raises(ObjectError, match="metadata"):
        read_name(Raw(b"{}"))

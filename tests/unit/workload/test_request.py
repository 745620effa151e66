"""The table of placement.md §3, row by row, under annotations and settings."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import MemoryKind
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import ExclusivePartitions, ExclusiveQuota, FullCores, Level, Priority
from nri_policy.workload.annotation_table import BY_NAME
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, Resources, shares_of
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import (
    Entitlement,
    Isolation,
    Request,
    Sort,
    Steering,
    request_of,
)
from tests.support import nodes

DOMAIN = "resource-policy.nri.io"
NO, PREFERRED, REQUIRED = Isolation.NO, Isolation.PREFERRED, Isolation.REQUIRED


def asked(container: Container, **spec: Any) -> Request:
    wishes = preferences(container.pod.annotations, container.name)
    return request_of(container, wishes, nodes.settings(**spec), 64 << 30)


def guaranteed(milli: int, annotations: dict[str, str], **spec: Any) -> Request:
    """Ask for Guaranteed CPU; annotations without a domain are the pod's."""
    return asked(nodes.container(milli, annotations=domain_of(annotations)), **spec)


def domain_of(annotations: dict[str, str]) -> dict[str, str]:
    """Return *annotations*, those without a domain as the pod's."""
    return {
        key if "/" in key else f"{key}.{DOMAIN}/pod": value for key, value in annotations.items()
    }


SHARED = {"prefer-shared-cpus": "true"}
OWN = {"prefer-shared-cpus": "false"}
ISOLATED = {"prefer-isolated-cpus": "true"}
NOT_ISOLATED = {"prefer-isolated-cpus": "false"}
REQUIRE = {"require-isolated-cpus": "true"}
SHARE = {"preferSharedCPUs": True}
ISOLATE = {"preferIsolatedCPUs": True}


@pytest.mark.parametrize(
    ("milli", "annotations", "spec", "parts"),
    [
        # below 1000m: shared, whatever is preferred
        (999, {}, {}, (0, 999, NO)),
        (999, OWN | REQUIRE, ISOLATE, (0, 999, NO)),
        (0, {}, {}, (0, 0, NO)),
        # 1000-1999m: one exclusive, the rest shared, unless shared is preferred
        (1000, {}, {}, (1, 0, NO)),
        (1500, {}, {}, (1, 500, NO)),
        (1999, {}, {}, (1, 999, NO)),
        (1500, SHARED, {}, (0, 1500, NO)),
        (1500, {}, SHARE, (0, 1500, NO)),
        (1500, OWN, SHARE, (1, 500, NO)),
        (1000, SHARED, {}, (0, 1000, NO)),
        # ... isolated if preferred: by annotation or else by setting
        (1000, {}, ISOLATE, (1, 0, PREFERRED)),
        (1000, ISOLATED, {}, (1, 0, PREFERRED)),
        (1000, NOT_ISOLATED, ISOLATE, (1, 0, NO)),
        (1500, REQUIRE, {}, (1, 500, REQUIRED)),
        (1500, REQUIRE | SHARED, {}, (0, 1500, NO)),
        # 2000m and more with a fraction: shared, unless annotated; a setting is not enough
        (2500, {}, {}, (0, 2500, NO)),
        (2500, {}, ISOLATE, (0, 2500, NO)),
        (2500, SHARED, {}, (0, 2500, NO)),
        (2500, OWN, {}, (2, 500, NO)),
        (2500, OWN, SHARE, (2, 500, NO)),
        (2500, OWN, ISOLATE, (2, 500, PREFERRED)),
        (2500, OWN | ISOLATED, {}, (2, 500, PREFERRED)),
        (2500, OWN | REQUIRE, {}, (2, 500, REQUIRED)),
        (2500, ISOLATED, {}, (0, 2500, NO)),
        (2001, OWN, {}, (2, 1, NO)),
        # 2000m and more, whole: all exclusive unless shared is preferred
        (2000, {}, {}, (2, 0, NO)),
        (3000, SHARED, {}, (0, 3000, NO)),
        (3000, {}, SHARE, (0, 3000, NO)),
        (3000, OWN, SHARE, (3, 0, NO)),
        # ... isolated only if annotated
        (2000, {}, ISOLATE, (2, 0, NO)),
        (2000, ISOLATED, {}, (2, 0, PREFERRED)),
        (2000, NOT_ISOLATED, ISOLATE, (2, 0, NO)),
        (2000, REQUIRE, {}, (2, 0, REQUIRED)),
        (2000, {"require-isolated-cpus": "false"}, ISOLATE, (2, 0, NO)),
    ],
)
def test_guaranteed_containers_have_exclusive_cpus_by_the_table(
    milli: int,
    annotations: dict[str, str],
    spec: dict[str, Any],
    parts: tuple[int, int, Isolation],
) -> None:
    request = guaranteed(milli, annotations, **spec)
    assert (request.exclusive, request.shared, request.steering.isolated) == parts
    assert request.sort is Sort.NORMAL
    assert request.milli == milli


@pytest.mark.parametrize("annotations", [{}, OWN, ISOLATED, REQUIRE])
@pytest.mark.parametrize("milli", [500, 1000, 2000, 2500])
def test_burstable_containers_share(annotations: dict[str, str], milli: int) -> None:
    keys = {f"{key}.{DOMAIN}/pod": value for key, value in annotations.items()}
    request = asked(nodes.container(milli, 2 * milli, annotations=keys), **ISOLATE)
    assert (request.exclusive, request.shared, request.steering.isolated) == (0, milli, NO)
    assert request.cpu_limit == 2 * milli
    assert request.shares
    assert not request.preemptible


def test_best_effort_containers_are_guests_unless_static() -> None:
    request = asked(nodes.best_effort())
    assert (request.exclusive, request.shared, request.cpu_limit) == (0, 0, None)
    assert request.preemptible
    static = asked(nodes.best_effort(annotations={f"static-cpus.{DOMAIN}/pod": "true"}))
    assert static.shares
    assert not static.preemptible
    assert asked(nodes.container(0, None, qos=QoS.BURSTABLE)).preemptible


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"/container.c0": "true"}, Sort.RESERVED),
        ({"/container.other": "true"}, Sort.NORMAL),
        ({"/pod": "true"}, Sort.RESERVED),
        ({"": "true"}, Sort.RESERVED),
        ({"/container.c0": "false", "/pod": "true", "": "true"}, Sort.NORMAL),
        ({"/container.c0": "true", "/pod": "false"}, Sort.RESERVED),
        ({"/pod": "false", "": "true"}, Sort.NORMAL),
    ],
)
def test_the_tightest_scope_decides(keys: dict[str, str], expected: Sort) -> None:
    annotations = {f"prefer-reserved-cpus.{DOMAIN}{scope}": value for scope, value in keys.items()}
    assert asked(nodes.container(2000, annotations=annotations)).sort is expected


@pytest.mark.parametrize(
    ("namespace", "annotations", "expected"),
    [
        ("default", {}, Sort.NORMAL),
        ("kube-system", {}, Sort.RESERVED),
        ("kube-systems", {}, Sort.NORMAL),
        ("infra-1", {}, Sort.RESERVED),
        ("xinfra-1", {}, Sort.NORMAL),
        ("log", {}, Sort.RESERVED),
        ("kube-system", {"prefer-reserved-cpus": "false"}, Sort.NORMAL),
        ("infra-1", {"prefer-reserved-cpus": "false"}, Sort.NORMAL),
        ("default", {"prefer-reserved-cpus": "true"}, Sort.RESERVED),
        # cpu.preserve comes first of all
        ("kube-system", {"cpu.preserve": "true"}, Sort.PRESERVE),
        ("default", {"cpu.preserve": "true", "prefer-reserved-cpus": "true"}, Sort.PRESERVE),
        ("kube-system", {"cpu.preserve": "false"}, Sort.RESERVED),
    ],
)
def test_namespaces_and_annotations_choose_the_cpus(
    namespace: str, annotations: dict[str, str], expected: Sort
) -> None:
    keys = {f"{key}.{DOMAIN}/pod": value for key, value in annotations.items()}
    container = nodes.container(2500, namespace=namespace, annotations=keys)
    request = asked(container, reservedPoolNamespaces=["infra-*", "log"])
    assert request.sort is expected
    if expected is not Sort.NORMAL:
        assert request.exclusive == 0
        assert request.shared == (2500 if expected is Sort.RESERVED else 0)
        assert not request.shares
        assert not request.preemptible


EXACT = "noderesource.dev/resources"


@pytest.mark.parametrize(
    ("text", "milli", "exclusive"),
    [
        ('{"containers": {"c0": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}}', 2000, 2),
        ('{"containers": {"c0": {"limits": {"cpu": "1500m"}}}}', 1500, 1),
        ('{"containers": {"c0": {"requests": {"cpu": "3"}}}}', 3000, 3),
        ('{"initContainers": {"c0": {"requests": {"cpu": 4}}}}', 4000, 4),
        ('{"containers": {"c0": {}}}', 0, 0),
        ('{"containers": {"c1": {"requests": {"cpu": "2"}}}}', 5000, 5),
    ],
)
def test_exact_requirements_replace_the_estimates(text: str, milli: int, exclusive: int) -> None:
    request = guaranteed(5000, {EXACT: text})
    assert (request.milli, request.exclusive) == (milli, exclusive)


def test_exact_limits_are_those_of_a_burstable_container() -> None:
    text = '{"containers": {"c0": {"requests": {"cpu": "41m"}, "limits": {"cpu": "7"}}}}'
    request = asked(nodes.container(40, 6000, annotations={EXACT: text}))
    assert (request.shared, request.cpu_limit) == (41, 7000)
    text = '{"containers": {"c0": {"requests": {"cpu": "41m"}}}}'
    request = asked(nodes.container(40, 6000, annotations={EXACT: text}))
    assert (request.shared, request.cpu_limit) == (41, None)


def test_a_guaranteed_containers_quota_is_exact_where_its_shares_end() -> None:
    container = nodes.container(300_000)
    assert container.resources.cpu_request == 256_000, "262144 shares are the kernel's most"
    assert asked(container).milli == 300_000
    no_quota = replace(container, resources=Resources(cpu_shares=shares_of(2000), cpu_quota=-1))
    assert asked(no_quota).exclusive == 2


@pytest.mark.parametrize(
    ("key", "value", "spec", "field", "expected"),
    [
        ("unlimited-burstable", "numa", {}, "burst_level", Level.NUMA),
        (None, None, {}, "burst_level", Level.PACKAGE),
        (None, None, {"unlimitedBurstable": "l3cache"}, "burst_level", Level.L3CACHE),
        (
            "unlimited-burstable",
            "system",
            {"unlimitedBurstable": "numa"},
            "burst_level",
            Level.SYSTEM,
        ),
        (None, None, {}, "distribute", False),
        (None, None, {"distributeCPUsAcrossNUMA": True}, "distribute", True),
        (
            *("distribute-cpus-across-numa", "false"),
            *({"distributeCPUsAcrossNUMA": True}, "distribute", False),
        ),
        (None, None, {}, "full_cores", FullCores.OFF),
        (None, None, {"exclusiveQuota": "keep"}, "exclusive_quota", ExclusiveQuota.KEEP),
        (
            *("exclusive-quota", "none", {"exclusiveQuota": "keep"}),
            *("exclusive_quota", ExclusiveQuota.NONE),
        ),
        (None, None, {}, "exclusive_partition", ExclusivePartitions.OFF),
        (
            *("exclusive-partition", "off", {"exclusivePartitions": "root"}),
            *("exclusive_partition", ExclusivePartitions.OFF),
        ),
        (None, None, {"fullCores": "prefer"}, "full_cores", FullCores.PREFER),
        ("full-cores", "off", {"fullCores": "require"}, "full_cores", FullCores.OFF),
        (None, None, {}, "priority", Priority.NONE),
        (None, None, {"defaultCPUPriority": "low"}, "priority", Priority.LOW),
        ("prefer-cpu-priority", "high", {"defaultCPUPriority": "low"}, "priority", Priority.HIGH),
        ("prefer-cpu-priority", "none", {"defaultCPUPriority": "low"}, "priority", Priority.NONE),
        ("prefer-cpu-priority", "default", {"defaultCPUPriority": "low"}, "priority", Priority.LOW),
        ("hide-hyperthreads", "true", {}, "hide_hyperthreads", True),
        ("memory.preserve", "true", {}, "memory_preserve", True),
        ("memory-type", "HBM", {}, "memory_kinds", (MemoryKind.HBM,)),
        ("memory-type", "pmem,hbm", {}, "memory_kinds", (MemoryKind.HBM, MemoryKind.PMEM)),
        (None, None, {}, "memory_kinds", (MemoryKind.DRAM, MemoryKind.PMEM)),
    ],
)
def test_an_annotation_comes_before_the_setting(
    key: str | None, value: str, spec: dict[str, Any], field: str, expected: object
) -> None:
    annotations = {} if key is None else {key: value}
    request = guaranteed(2000, annotations, **spec)
    assert (asdict(request) | asdict(request.steering))[field] == expected


# Values of annotations: every annotation accepts one of them, and means something by it.
TEXTS = (
    *("true", "false", "none", "high", "require", "keep", "isolated", "system"),
    *("hbm", "gold"),
    *("duration: 60s", "{type: prefix, paths: [/dev/fast]}", "claim: [24]"),
)
DISK = Hint(source="/dev/fast0", kind=HintKind.DEVICES, cpus=CPUSet([1]), nodes=EMPTY)


@pytest.mark.parametrize("key", [*BY_NAME])
def test_every_annotation_is_part_of_the_entitlement_or_steers(key: str) -> None:
    def changes(others: dict[str, str], text: str) -> bool:
        plain, annotated = (
            replace(nodes.container(1500, annotations=domain_of(keys)), hints=(DISK,))
            for keys in (others, others | {key: text})
        )
        try:
            return asked(plain) != asked(annotated)
        except AnnotationError:
            return False

    denied = {"deny.topologyhints": "{type: prefix, paths: [/dev/]}"}
    assert any(changes(others, text) for others in ({}, denied) for text in TEXTS)


@pytest.mark.parametrize("field", Entitlement.__struct_fields__)
def test_an_entitlement_has_every_field_of_its_request(field: str) -> None:
    value = object()
    request = replace(guaranteed(2000, {}), **{field: value})
    assert getattr(request.entitlement, field) is value


def test_entitlement_and_steering_have_no_field_in_common() -> None:
    assert not {*Entitlement.__struct_fields__} & {*Steering.__struct_fields__}


def test_every_request_is_read_back_from_its_shares() -> None:
    for milli in (*range(3, 4000), 12_345, 255_999):
        assert nodes.resources(milli, None).cpu_request == milli

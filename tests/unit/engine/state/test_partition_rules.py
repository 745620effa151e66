"""Which containers are to be kernel partitions, by the decisions alone."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.classes import Equipment
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Equipped, Prepared
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node.view import view_of
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.pod import Container
from tests.support import nodes, rooms
from tests.support.claims import part, user

ROOT, ISOLATED = ExclusivePartitions.ROOT, ExclusivePartitions.ISOLATED
KEY = "exclusive-partition.resource-policy.nri.io"
MIXED = {"prefer-shared-cpus.resource-policy.nri.io/pod": "false"}
TOO_OLD = Equipment(no_partition="kernel too old")


def found(container: Container, machine: str = nodes.SMALL, **spec: Any) -> Partition | str:
    engine = Engine(nodes.machine(machine), nodes.settings(**spec))
    engine.handle(Created(container=container))
    return view_of(engine).partition(container.id)


@pytest.mark.parametrize("kind", [ROOT, ISOLATED])
def test_whoever_has_only_cpus_of_its_own_is_a_partition_of_them(kind: ExclusivePartitions) -> None:
    partition = found(nodes.container(2000), exclusivePartitions=kind.value)
    assert isinstance(partition, Partition)
    assert (partition.kind, len(partition.cpus)) == (kind, 2)


def test_without_the_setting_nothing_is_a_partition() -> None:
    assert not found(nodes.container(2000))


@pytest.mark.parametrize(
    ("setting", "annotation", "kind"),
    [("off", "isolated", ISOLATED), ("isolated", "root", ROOT), ("root", "off", None)],
)
@pytest.mark.parametrize("scope", ["", "/pod", "/container.c0"])
def test_the_annotation_comes_before_the_setting(
    setting: str, annotation: str, kind: ExclusivePartitions | None, scope: str
) -> None:
    container = nodes.container(2000, annotations={KEY + scope: annotation})
    partition = found(container, exclusivePartitions=setting)
    assert (partition.kind if isinstance(partition, Partition) else None) is kind


@pytest.mark.parametrize(
    ("container", "spec", "reason"),
    [
        (nodes.best_effort(), {}, "it has no exclusive CPUs"),
        (nodes.container(2000, 2000, qos=QoS.BURSTABLE), {}, "it has no exclusive CPUs"),
        (nodes.container(2000, namespace="kube-system"), {}, "it has no exclusive CPUs"),
        (nodes.container(2500, annotations=MIXED), {}, "it also shares CPUs with others"),
        (nodes.container(2000), {"pinCPU": False}, "the setting pinCPU is false"),
    ],
)
def test_one_that_shares_cpus_or_is_not_pinned_is_none(
    container: Container, spec: dict[str, Any], reason: str
) -> None:
    assert found(container, exclusivePartitions="root", **spec) == reason


@pytest.mark.parametrize(("kind", "is_one"), [("root", False), ("isolated", True)])
def test_cpus_that_are_isolated_since_boot_need_an_isolated_one(kind: str, is_one: bool) -> None:
    isolated = f"{nodes.SMALL} isolated=4-7"
    spec = {"exclusivePartitions": kind, "preferIsolatedCPUs": True}
    partition = found(nodes.container(1000), isolated, **spec)
    assert isinstance(partition, Partition) is is_one


def test_hidden_threads_are_outside_of_the_partition() -> None:
    hidden = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    container = nodes.container(2000, annotations=hidden)
    engine = Engine(nodes.machine(), nodes.settings(exclusivePartitions="root"))
    engine.handle(Created(container=container))
    view = view_of(engine)
    partition = view.partition(container.id)
    assert isinstance(partition, Partition)
    assert partition.cpus == view.sent[container.id][0] < view.placed[container.id].grant.own


def create(container: Container, *, admitted: bool = False, **spec: Any) -> Engine | str:
    """Create a container on a node whose kernel is too old; return its refusal, if it is."""
    engine = Engine(nodes.machine(), nodes.settings(**spec))
    engine.handle(Equipped(equipment=TOO_OLD))
    try:
        engine.handle(Created(container=container, admitted=admitted))
    except Refused as refusal:
        return str(refusal)
    return engine


def test_an_annotation_that_the_node_cannot_follow_is_refused_with_the_reason() -> None:
    container = nodes.container(2000, annotations={f"{KEY}/pod": "isolated"})
    refusal = "annotation exclusive-partition: 'isolated' is not possible on this node"
    assert create(container) == f"{refusal}: kernel too old"
    running = create(container, admitted=True)
    assert isinstance(running, Engine), "what runs already is not refused"
    assert view_of(running).partition(container.id) == "kernel too old"


def test_by_the_setting_a_node_that_cannot_goes_on_as_before() -> None:
    container = nodes.container(2000)
    engine = create(container, exclusivePartitions="root")
    assert isinstance(engine, Engine)
    assert view_of(engine).partition(container.id) == "kernel too old"
    off = nodes.container(2000, annotations={f"{KEY}/pod": "off"})
    assert isinstance(create(off), Engine)


def test_the_only_user_of_a_claim_is_a_partition_and_several_are_not() -> None:
    cpus = part(2000, 1)
    engine = Engine(nodes.machine(), nodes.settings(exclusivePartitions="root"))
    engine.handle(Prepared(parts=(cpus,)))
    first, second = user(cpus), user(cpus)
    engine.handle(Created(container=first))
    only = view_of(engine).partition(first.id)
    assert isinstance(only, Partition)
    assert len(only.cpus) == 2
    engine.handle(Created(container=second))
    for each in (first, second):
        assert view_of(engine).partition(each.id) == "other containers use its resource claim, too"


def test_a_slice_of_a_room_is_a_partition_and_the_shared_rest_is_not() -> None:
    whole = rooms.pod(4000)
    engine = Engine(nodes.machine(), nodes.settings(exclusivePartitions="root"))
    own, rest = rooms.tenant(whole, "own", 2000, 2000), rooms.tenant(whole, "rest", 1500, 1500)
    for each in (own, rest):
        engine.handle(Created(container=each))
    view = view_of(engine)
    partition = view.partition(own.id)
    assert isinstance(partition, Partition)
    assert partition.cpus == view.placed[own.id].grant.exclusive
    assert isinstance(view.partition(rest.id), str)

"""NUMA fit against its plain twin, on random nodes and pods; and what comes and goes between."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cluster.numa.fit import NumaFit, reason_of
from nri_policy.cluster.objects.pod import Container, PodSpec
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.zones.numa_request import make_numa_request
from nri_policy.cluster.zones.zone import NodeZones, Zone
from tests.support import numa_fit_twin as twin

RESOURCES = ("cpu", "memory", "hugepages-2Mi", "ephemeral-storage", "a.com/gpu", "b.com/nic")
STRATEGIES = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")
WEIGHTS = {"cpu": 5, "memory": 0, "a.com/gpu": 3}

FREE = st.one_of(
    st.integers(-1, 6).map(lambda units: units * twin.UNIT),
    st.integers(-1, 12).map(lambda halves: halves * twin.UNIT // 2),
    st.sampled_from([1, -1, (2**63 - 1) * twin.UNIT]),
)
ASKED = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4), max_size=4)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[str], NodeZones | None, bool]:
    """What the node has, its zones, and whether these are stale."""
    ids = draw(st.lists(st.sampled_from([0, 1, 2, 3, 64, 2000]), unique=True, max_size=5))
    costs = st.sampled_from([10, 11, 12, 20, 21])
    zones = [
        Zone(
            name=f"node-{number}",
            type="Node",
            costs={f"node-{to}": draw(costs) for to in ids if draw(st.integers(0, 9))},
            free=(free := draw(st.dictionaries(st.sampled_from(RESOURCES), FREE))),
            total={name: max(amount, 4 * twin.UNIT) for name, amount in free.items()},
        )
        for number in ids
    ]
    attributes = [
        ("topologyManagerPolicy", draw(st.sampled_from(["single-numa-node"] * 4 + ["restricted"]))),
        ("topologyManagerScope", draw(st.sampled_from(["container", "pod"]))),
        ("topologyManagerMaxNUMANodes", draw(st.sampled_from(["2", "8", "1", "x"]))),
    ]
    document = NodeZones("n", tuple(zones), attributes=tuple(attributes))
    has = draw(st.lists(st.sampled_from(RESOURCES), unique=True, min_size=3))
    return has, draw(st.sampled_from([document] * 9 + [None])), draw(st.integers(0, 19)) == 0


@st.composite
def specs(draw: st.DrawFn) -> PodSpec:
    """Pods, half of them Guaranteed."""
    guaranteed = draw(st.booleans())

    def container(name: str, *, init: bool) -> Container:
        amounts = draw(ASKED)
        if guaranteed:
            amounts = {"cpu": draw(st.integers(1, 3)), "memory": 1} | amounts
            amounts |= {name: amounts[name] or 1 for name in ("cpu", "memory")}
        amounts = {name: n * (500 if name == "cpu" else 1) for name, n in amounts.items()}
        sidecar = init and draw(st.booleans())
        return Container(name, amounts, amounts if guaranteed else {}, sidecar=sidecar)

    return PodSpec(
        containers=tuple(container(f"c{n}", init=False) for n in range(draw(st.integers(1, 3)))),
        init_containers=tuple(
            container(f"i{n}", init=True) for n in range(draw(st.integers(0, 2)))
        ),
        overhead=draw(st.sampled_from([{}, {"cpu": 250}])),
    )


def twin_node(has: list[str], document: NodeZones | None, *, stale: bool) -> twin.Node:
    """The node as the twin has it."""
    always = {"cpu", "memory", "pods", "ephemeral-storage"}
    node = twin.Node(set(has) | always, known=document is not None, stale=stale, policy="none")
    if document is not None:
        given = dict(document.attributes)
        node.policy = given["topologyManagerPolicy"]
        node.scope = given["topologyManagerScope"]
        node.max_numa = {"2": 2}.get(given["topologyManagerMaxNUMANodes"], 8)
        node.zones = sorted(
            (
                twin.Zone(
                    int(zone.name[5:]),
                    zone.free,
                    {int(to[5:]): cost for to, cost in zone.costs.items()},
                )
                for zone in document.zones
            ),
            key=lambda zone: zone.id,
        )
    return node


def twin_pod(spec: PodSpec, *, strict: bool) -> twin.Pod:
    """The pod as the twin has it."""

    def exact(amounts: dict[str, int]) -> twin.Request:
        unit = {"cpu": twin.UNIT // 1000}
        return {name: n * unit.get(name, twin.UNIT) for name, n in amounts.items()}

    init = [
        ("sidecar container" if each.sidecar else "init container", exact(each.requests))
        for each in spec.init_containers
    ]
    app = [("container", exact(each.requests)) for each in spec.containers]
    every = [each for _, each in (*init, *app)]
    if any(each.limits for each in spec.containers):
        qos = "Guaranteed"
    else:
        asked = any(each.get(name) for each in every for name in ("cpu", "memory"))
        qos = "Burstable" if asked else "BestEffort"
    names = {name for each in every for name in each} | set(spec.overhead)
    overhead = exact(spec.overhead)
    whole = {}
    for name in names:
        running = sum(each.get(name, 0) for _, each in app)
        peak = beside = 0
        for kind, each in init:
            alone = each.get(name, 0)
            peak = max(peak, alone + (beside if strict else 0))
            if strict and kind == "sidecar container":
                beside += alone
        whole[name] = max(running + beside, peak) + overhead.get(name, 0)
    return twin.Pod(qos, [*init, *app], whole, sidecars_stay=strict)


def check(fits: NumaFit, plain: dict[str, twin.Node], spec: PodSpec, extender: Extender) -> None:
    """Compare all nodes' answers, and the zones that are chosen."""
    request = make_numa_request(spec, strict=extender.strict)
    answer = fits.ask(request)
    pod = twin_pod(spec, strict=extender.strict)
    assert request.qos == pod.qos
    assert fits.slots.keys() == plain.keys()
    for name, node in plain.items():
        slot = fits.slots[name]
        assert reason_of(answer.verdicts[slot]) == twin.fit(node, pod), name
        expected = twin.score(node, pod, extender.strategy, dict(extender.resources))
        assert answer.scores[slot] == expected, name


@given(nodes(), specs(), st.sampled_from(STRATEGIES), st.booleans())
@settings(max_examples=400)
def test_a_node_is_as_its_twin(
    node: tuple[list[str], NodeZones | None, bool], spec: PodSpec, strategy: Any, strict: bool
) -> None:
    extender = Extender(strategy=strategy, resources=WEIGHTS, strict=strict)
    fits = NumaFit(extender)
    has, document, stale = node
    fits.put("n", fits.reader.read(has, document, stale=stale)[0])
    check(fits, {"n": twin_node(has, document, stale=stale)}, spec, extender)


@given(
    st.lists(st.one_of(st.tuples(st.sampled_from("abcd"), st.none() | nodes()), specs())),
    st.sampled_from(STRATEGIES),
)
@settings(max_examples=100)
def test_kept_answers_are_as_new_ones(events: list[Any], strategy: Any) -> None:
    """Nodes come, change and go between pods, and pods come again."""
    extender = Extender(strategy=strategy)
    fits, plain = NumaFit(extender), dict[str, twin.Node]()
    pods: list[PodSpec] = []
    for event in events:
        if isinstance(event, PodSpec):
            pods.append(event)
        elif event[1] is None:
            fits.remove(event[0])
            plain.pop(event[0], None)
        else:
            has, document, stale = event[1]
            fits.put(event[0], fits.reader.read(has, document, stale=stale)[0])
            plain[event[0]] = twin_node(has, document, stale=stale)
        for spec in pods:
            check(fits, plain, spec, extender)

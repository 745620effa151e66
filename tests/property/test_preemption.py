"""Preemption against plain Python, and against all sets of groups that could leave."""

from __future__ import annotations

from itertools import combinations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Container, PodSpec, Template
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest, PodSet
from nri_policy.cluster.view import Cluster

EXAMPLES = 60
SETTINGS = ClusterSettings(topologies=[Topology(levels=["rack", HOSTNAME])])
NODES = [
    ClusterNode(
        name=f"n{n}", labels={"rack": f"r{n // 2}", HOSTNAME: f"n{n}"}, allocatable={"cpu": 4000}
    )
    for n in range(6)
]


@st.composite
def groups(draw: st.DrawFn, name: str) -> PlacementGroup:
    """A group of equal pods that asks for a rack, prefers one, or goes anywhere."""
    container = Container(name="c", requests={"cpu": 1000 * draw(st.integers(1, 3))}, limits={})
    mode = draw(st.sampled_from(["required", "preferred", "unconstrained"]))
    request = PlacementRequest(**{mode: True if mode == "unconstrained" else "rack"})  # type: ignore[arg-type]
    template = Template(spec=PodSpec(containers=(container,)))
    return PlacementGroup(
        "default",
        name,
        (PodSet("main", draw(st.integers(1, 6)), template, request),),
        priority=draw(st.integers(0, 2)),
        created=f"2026-01-0{draw(st.integers(1, 3))}T00:00:00Z",
    )


def engine_of(placed: list[PlacementGroup]) -> Engine:
    engine = Engine(SETTINGS, Cluster(NODES).view)
    for each in placed:
        engine.state.set_group(each)
    return engine


def plainly(engine: Engine, group: PlacementGroup) -> list[PlacementGroup] | None:
    """Take out one by one until it fits, then put back one by one, the last one first."""
    lower = [each for each in engine.state.groups.values() if each.priority < group.priority]
    lower.sort(key=lambda each: each.name)
    lower.sort(key=lambda each: each.created, reverse=True)
    lower.sort(key=lambda each: each.priority)
    out: list[PlacementGroup] = []
    while not fits(engine, group, out):
        if len(out) == len(lower):
            return None
        out.append(lower[len(out)])
    for each in reversed([*out]):
        rest = [other for other in out if other is not each]
        out = rest if fits(engine, group, rest) else out
    return out


def fits(engine: Engine, group: PlacementGroup, out: list[PlacementGroup]) -> bool:
    left = [each for each in engine.state.groups.values() if each not in out]
    return engine_of(left).place(group).state == "Placed"


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_the_victims_are_those_of_plain_python_and_none_of_them_could_stay(
    data: st.DataObject,
) -> None:
    engine = engine_of([])
    for number in range(data.draw(st.integers(2, 8))):
        group = data.draw(groups(f"g{number}"))
        status = engine.place(group)
        if status.state == "Placed":
            engine.state.set_group(msgspec.structs.replace(group, status=status))
    asked = msgspec.structs.replace(data.draw(groups("new")), priority=data.draw(st.integers(1, 3)))
    before = engine.state.tree("default").rows.dump()
    found = find_victims(engine, asked)
    assert engine.state.tree("default").rows.dump() == before
    assert found == plainly(engine, asked)
    lower = [each for each in engine.state.groups.values() if each.priority < asked.priority]
    if found is None:
        assert not fits(engine, asked, lower)
        return
    assert all(each in lower for each in found)
    for count in range(len(found)):
        for fewer in combinations(found, count):
            assert not fits(engine, asked, [*fewer])

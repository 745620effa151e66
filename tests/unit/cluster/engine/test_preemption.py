"""Who would have to leave so that a group of higher priority fits."""

from __future__ import annotations

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from tests.unit.cluster.engine.test_below_host import zone
from tests.unit.cluster.written import (
    HOSTNAME,
    Object,
    group,
    node,
    pod,
    pod_set,
    settings,
)

RACKS = ("a", "b", "c")
NODES = [node(f"{rack}{n}", RACK=rack) for rack in RACKS for n in (1, 2)]
RACK = {"required": "example.com/rack"}


def cluster() -> Cluster:
    """Six nodes of 4 CPUs in three racks."""
    return Cluster([read_node(each, "") for each in NODES])


def engine(*placed: Object, topology: Object | None = None, of: Cluster | None = None) -> Engine:
    """An engine of that cluster, and these groups where they go."""
    using = read_settings(settings("rack", HOSTNAME, topology=topology or {}))
    made = Engine(using, (of or cluster()).view)
    for each in placed:
        status = made.place(read_group(each))
        assert status.state == "Placed", status.message
        made.state.set_group(msgspec.structs.replace(read_group(each), status=status))
    return made


def filler(name: str, pods: int = 8, priority: int = 0, created: str = "") -> Object:
    made = group(pod_set(pods, RACK), name=name, priority=priority)
    made["metadata"]["creationTimestamp"] = created or None
    return made


def leaving(made: Engine, asked: Object) -> list[str] | None:
    """The names of the victims, and nothing has changed by asking."""
    before = (made.state.tree("default").rows.dump(), dict(made.state.groups))
    found = find_victims(made, read_group(asked))
    assert (made.state.tree("default").rows.dump(), dict(made.state.groups)) == before
    return None if found is None else [each.name for each in found]


def test_nobody_leaves_for_what_fits() -> None:
    assert leaving(engine(), filler("new", 8, priority=5)) == []


def test_the_lowest_priority_leaves_first() -> None:
    made = engine(filler("x", priority=2), filler("y", priority=1), filler("z", priority=3))
    assert leaving(made, filler("new", 8, priority=5)) == ["y"]


def test_of_equal_priority_the_youngest_leaves_first() -> None:
    old, young = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    made = engine(filler("x", created=old), filler("y", created=young), filler("z", created=old))
    assert leaving(made, filler("new", 8, priority=5)) == ["y"]


def test_who_has_as_much_priority_stays() -> None:
    made = engine(filler("x", priority=5), filler("y", priority=6), filler("z", priority=5))
    assert leaving(made, filler("new", 8, priority=5)) is None


def test_nobody_leaves_in_vain() -> None:
    low = [filler(name, 4) for name in "zyx"]  # half a rack each; z and y share one
    made = engine(*low, *(filler(name, 4, priority=1) for name in "abc"))
    assert leaving(made, filler("new", 8, priority=5)) == ["y", "z"]
    assert leaving(made, filler("new", 9, priority=5)) is None


def test_pods_of_a_group_leave_with_it() -> None:
    made = engine(*(filler(each) for each in "xyz"))
    for number in range(8):
        [placed] = made.state.groups["default", "x"].status.assignments
        host = placed.domains[number // 4].values[0]
        made.state.set_pod(read_pod(pod(f"x-{number}", host, group="x", cpu=1), ""))
    made.state.set_group(
        msgspec.structs.replace(made.state.groups["default", "y"], priority=2),
    )
    made.state.set_group(
        msgspec.structs.replace(made.state.groups["default", "z"], priority=2),
    )
    assert leaving(made, filler("new", 8, priority=1)) == ["x"]


def test_what_runs_in_a_zone_is_free_once_its_pods_leave() -> None:
    """The report of a node lacks what runs there, and says so until the pods have ended."""
    nodes = cluster()
    made = engine(topology={"belowHost": ["Node"]}, of=nodes)
    nodes.follow(made.state)
    whole = RACK | {"slices": [{"level": "zone/Node", "size": 1}]}
    reports = [
        read_zones({"metadata": {"name": "a1"}, "zones": [node]}, "")
        for node in (zone("node-0", "Node", left, total="4") for left in ("4", "0"))
    ]
    nodes.set_zones(reports[0])
    old = read_group(group(pod_set(1, whole, cpu=4), name="old"))
    made.state.set_group(msgspec.structs.replace(old, status=made.place(old)))
    made.state.set_pod(read_pod(pod("old-0", "a1", group="old", cpu=4), ""))
    nodes.set_zones(reports[1])
    asked = group(pod_set(1, whole, cpu=4), name="new", priority=1)
    assert made.place(read_group(asked)).state == "Unplaceable"
    assert leaving(made, asked) == ["old"]

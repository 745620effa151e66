"""What is used where: an event that fails leaves all as it was."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.usage import in_use
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import Together, read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import NodeZones, Zone, read_zones
from tests.unit.cluster.engine.test_below_host import zone
from tests.unit.cluster.engine.test_preemption import RACK, cluster, engine
from tests.unit.cluster.written import (
    HOSTNAME,
    Object,
    group,
    node,
    pod,
    pod_set,
    pod_spec,
    settings,
)


def test_steps_beside_a_group_are_those_of_its_jobset_that_name_a_level_to_share() -> None:
    state, shared = engine().state, Together(required="example.com/rack")
    others = {"a": "one", "b": "one", "c": "other", "plain": "one", "alone": ""}
    for name, job_set in others.items():
        together = None if name == "plain" else shared
        made = read_group(group(pod_set(1), name=name))
        state.set_group(replace(made, job_set=job_set, together=together))

    def beside(name: str, state: ClusterState = state) -> list[str]:
        return [each.name for each in state.usages.steps_beside(state.groups["default", name])]

    assert {name: beside(name) for name in others} == {
        "a": ["b"],
        "b": ["a"],
        "c": [],
        "plain": [],
        "alone": [],
    }
    trial = state.fork()
    trial.set_group(replace(state.groups["default", "a"], job_set="other"))
    trial.remove_group("default", "plain")
    assert (beside("c", trial), beside("b", trial)) == (["a"], [])
    assert (beside("c"), beside("b")) == ([], ["a"])
    state.remove_group("default", "a")
    assert beside("b") == []


def test_a_group_that_cannot_be_counted_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(group(pod_set(4, RACK), name="g"))
    made.state.set_pod(read_pod(pod("p", "a1", group="g", cpu=1), ""))
    before, groups = made.state.tree("default").rows.dump(), dict(made.state.groups)
    calls: list[Any] = []

    def break_second(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise ZeroDivisionError
        return in_use(*given)

    monkeypatch.setattr("nri_policy.cluster.engine.state.group_usages.in_use", break_second)
    with pytest.raises(ZeroDivisionError):
        made.state.set_group(
            read_group(
                group(
                    pod_set(4, RACK),
                    name="g",
                    status={
                        "assignments": [
                            {
                                "podSet": "main",
                                "levels": ["kubernetes.io/hostname"],
                                "domains": [{"values": ["b1"], "count": 4}],
                            }
                        ]
                    },
                )
            )
        )
    assert made.state.tree("default").rows.dump() == before
    assert made.state.groups == groups


def test_tolerations_tell_no_pods_apart_where_no_node_has_taints() -> None:
    """Else each kind of them is counted by itself."""
    tree = engine().state.tree("default")
    plain, tolerating = (
        read_pod(pod("p", "") | {"spec": pod_spec({"cpu": 1}, tolerations=each)}, "").spec
        for each in ([], [{"key": "k", "operator": "Exists"}])
    )
    assert tree.filter(tolerating, scored=False) is tree.filter(plain, scored=False)


def test_a_fork_lives_until_anything_changes_where_it_comes_from() -> None:
    shared = cluster()
    made = engine(of=shared)
    shared.follow(made.state)
    report = read_zones({"metadata": {"name": "a1"}, "zones": [zone("node-0", "Node", "4")]}, "")
    runs = read_pod(pod("p", "a1", cpu=1), "")
    bound = read_pod(pod("q", "a1", cpu=1, group="g"), "")
    given = read_group(group(pod_set(1, RACK), name="g"))
    changes: list[Callable[[], object]] = [
        lambda: shared.set_node(read_node(node("new", RACK="a"), "")),
        lambda: shared.remove_node("new"),
        lambda: shared.set_zones(report),
        lambda: shared.remove_zones("a1"),
        lambda: made.state.add_pods([runs]),
        lambda: made.state.set_pod(runs),
        lambda: made.state.remove_pod("default", "p"),
        lambda: made.state.set_pod(bound),
        lambda: made.state.set_group(msgspec.structs.replace(given, status=made.place(given))),
        lambda: made.state.configure(made.state.settings),
    ]
    for number, change in enumerate(changes):
        fork = made.fork()
        assert fork.state.is_up_to_date()
        change()
        assert not fork.state.is_up_to_date(), number


def test_pods_that_are_taken_in_together_count_as_each_alone_does() -> None:
    def stays(number: int, at: str) -> Pod:
        given = pod(f"stays-{number}", at)
        return read_pod(given | {"spec": given["spec"] | {"restartPolicy": "Always"}}, "")

    pods = [
        *(read_pod(pod(f"ends-{number}", "a1", cpu=1), "") for number in range(2)),
        *(read_pod(pod(f"large-{at}", at, cpu=2), "") for at in ("a2", "b1", "unknown")),
        *(stays(number, at) for number, at in enumerate(("a1", "a1", "b1"))),
    ]
    together, alone, empty = (engine() for _ in range(3))
    asked = read_group(group(pod_set(2, {"spreadOver": [RACK["required"]]})))

    def counted(made: Engine) -> tuple[object, ...]:
        trees = made.state.tree("default"), made.state.emptied(()).tree("default")
        free = [each.rows.dump() for each in trees]
        return made.state.pods(), free, made.spread(asked, {})  # to nodes that run fewer pods

    together.state.add_pods(pods)
    for each in pods:
        alone.state.set_pod(each)
    assert counted(together) == counted(alone)
    for expected, seen in zip(counted(empty), counted(together), strict=True):
        assert expected != seen
    for each in pods:
        together.state.remove_pod(each.namespace, each.name)
    assert counted(together) == counted(empty)


@pytest.mark.parametrize(
    ("name", "changes"), [("nri-policy/pods", False), ("topologyManagerPolicy", True)]
)
def test_what_a_report_says_of_pods_changes_no_empty_cluster(name: str, changes: bool) -> None:
    """A daemon names the pods that it counts anew with each of them."""
    cluster = Cluster([read_node(node("a"), "")])
    engine = Engine(read_settings(None), cluster.view)
    cluster.follow(engine.state)
    total = {"cpu": 8}
    before, after = (
        NodeZones(
            "a",
            (Zone("node-0", "Node", total=total, free={"cpu": free}),),
            (),
            ((name, str(free)),),
        )
        for free in (1, 2)
    )
    cluster.set_zones(before)
    emptied = engine.without_usage()
    cluster.set_zones(after)
    assert emptied.state.is_up_to_date() != changes


def test_the_nodes_of_what_ended_are_released_the_latest_first() -> None:
    made = engine(group(pod_set(4, RACK), name="g"))
    began = made.state.releases
    assert made.state.released_since(began) == []
    for name, host in (("p", "a1"), ("q", "b1"), ("r", "a1")):
        made.state.set_pod(read_pod(pod(name, host, cpu=1), ""))
    assert made.state.released_since(began) == [], "pods came, none ended"
    for name in "pqr":
        made.state.remove_pod("default", name)
    assert made.state.released_since(began) == ["a1", "b1"]
    assert made.state.released_since(made.state.releases) == []
    fork = made.fork()
    fork.state.occupy("b1", made.state.kind({"cpu": 1000}), -1)
    assert made.state.released_since(began) == ["a1", "b1"], "a fork releases nothing here"
    assert not fork.state.releases


def test_the_end_of_a_group_releases_its_hosts_or_any_without_hosts_as_leaves() -> None:
    made = engine(group(pod_set(4, RACK), name="g"))
    asked = read_group(group(pod_set(2, RACK), name="new"))
    placed = msgspec.structs.replace(asked, status=made.place(asked))
    hosts = {each.values[-1] for one in placed.status.assignments for each in one.domains}
    made.state.set_group(placed)
    began = made.state.releases
    made.state.remove_group("default", "new")
    assert {*(made.state.released_since(began) or ())} == hosts
    racks = Engine(read_settings(settings("rack")), made.state.view)
    asked = read_group(group(pod_set(2, RACK), name="new"))
    placed = msgspec.structs.replace(asked, status=racks.place(asked))
    racks.state.set_group(placed)
    began = racks.state.releases
    racks.state.remove_group("default", "new")
    assert racks.state.released_since(began) is None


def test_an_assignment_takes_room_of_the_hosts_that_exist() -> None:
    """Two pods on a host, one on another, and three on one that is gone."""
    made = engine()
    places = [{"values": [host], "count": pods} for host, pods in (("a1", 2), ("b2", 1), ("x", 3))]
    assigned = {"podSet": "main", "levels": [HOSTNAME], "domains": places}
    status = {"state": "Placed", "assignments": [assigned]}
    made.state.set_group(read_group(group(pod_set(6, cpu=1), status=status)))
    tree = made.state.tree("default")
    left = {name: tree.rows.room(leaf)["cpu"] for name, leaf in tree.leaves_of_nodes().items()}
    assert left == dict.fromkeys(left, 4000) | {"a1": 2000, "b2": 3000}
    made.state.remove_group("default", "g")
    assert {tree.rows.room(leaf)["cpu"] for leaf in range(len(left))} == {4000}


def test_a_bound_pod_takes_one_entry_of_memory() -> None:
    state = engine().state
    kind = state.kind({"cpu": 100})
    names = [f"p{number}" for number in range(2000)]
    state.bind("default", "first", "a1", kind)  # makes what the node has
    tracemalloc.start()
    try:
        for name in names:
            state.bind("default", name, "a1", kind)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(names) < 200  # its key, its value, and its part of one table


def test_what_ends_after_a_cluster_was_emptied_takes_nothing_there() -> None:
    state = engine().state
    kind = state.kind({"cpu": 1000})
    state.bind("default", "service", "a1", kind)
    emptied = state.emptied(())
    state.bind("default", "job", "a1", kind, ends=True)
    assert emptied.is_up_to_date()
    tree = emptied.tree("default")
    leaf = tree.leaf_of("a1")
    assert leaf is not None
    assert tree.rows.room(leaf)["cpu"] == 3000


@pytest.mark.parametrize("topology", [None, {"levels": [RACK["required"]]}])
@pytest.mark.parametrize("first", ["group", "pods"])
def test_a_pod_that_was_resized_above_its_place_uses_the_rest_too(
    first: str, topology: Object | None
) -> None:
    """A smaller one leaves its place as it is: the next pod there comes from the template."""
    made = engine(topology=topology)
    placed = {"podSet": "main", "levels": [HOSTNAME], "domains": [{"values": ["a1"], "count": 2}]}
    whole = read_group(group(pod_set(2, cpu=1), status={"assignments": [placed]}))

    def left() -> int:
        tree = made.state.tree("default")
        return tree.rows.room(tree.leaves_of_nodes()["a1"])["cpu"]

    def run(name: str, **requests: Any) -> None:
        made.state.set_pod(read_pod(pod(name, "a1", group="g", **requests), ""))

    total = left()
    for each in (first, "pods" if first == "group" else "group"):
        if each == "group":
            made.state.set_group(whole)
        else:
            run("p0", cpu=1)
            run("p1", cpu="500m")
    assert left() == total - 2000
    run("p0", cpu="2500m")
    assert left() == total - 3500
    other = settings("rack", HOSTNAME, topology=topology or {}, balanced=True)
    made.state.configure(read_settings(other))
    assert left() == total - 3500, "in a tree that is made later"
    fork = made.state.fork()
    fork.take_out([whole.key])
    tree = fork.tree("default")
    assert tree.rows.room(tree.leaves_of_nodes()["a1"])["cpu"] == total
    run("p0", cpu=1)
    assert left() == total - 2000
    run("p0", cpu=3)
    made.state.remove_pod("default", "p0")
    assert left() == total - 2000
    run("p0", cpu=3)
    made.state.remove_group(*whole.key)
    assert left() == total - 3500, "what the two pods request"

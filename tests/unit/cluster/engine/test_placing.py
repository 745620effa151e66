"""Placing by example: capacity, exclusions, texts, groups of pod sets, bad input."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.document import DocumentError
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod, pod_set, settings

RACKS = settings("rack", HOSTNAME)
NODES = [node(f"{rack}{number}", RACK=rack) for rack in "ab" for number in (1, 2, 3)]


def place(given: Object, *, nodes: Any = NODES, using: Object = RACKS, **cluster: Any) -> Object:
    return offline.place({"nodes": nodes, **cluster}, given, using)


def required(level: str = "rack", **more: Any) -> Object:
    return {"required": f"example.com/{level}", **more}


def test_all_pods_of_a_required_rack_are_in_it() -> None:
    assert placed(place(group(pod_set(12, required())))) == {"main": {"a1": 4, "a2": 4, "a3": 4}}


def test_a_rack_that_is_too_small_is_refused_with_what_fits() -> None:
    status = place(group(pod_set(13, required())))
    assert status == {
        "state": "Unplaceable",
        "message": 'topology "default" allows to fit only 12 out of 13 pod(s)',
        "assignments": [],
    }


def test_a_preferred_rack_falls_back_to_more_of_them() -> None:
    status = place(group(pod_set(13, {"preferred": "example.com/rack"})))
    assert placed(status) == {"main": {"a1": 4, "a2": 4, "a3": 4, "b1": 1}}


def test_leaves_that_cannot_take_a_pod_are_counted_by_reason() -> None:
    nodes = [
        node("full", RACK="a", cpu=0),
        node("small", RACK="a", pods=0),
        node("tainted", RACK="a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
        node("bare", RACK="a", taints=[{"key": "k", "effect": "NoExecute"}]),
        node(
            "soft", RACK="a", taints=[{"key": "k", "effect": "PreferNoSchedule"}], labels={"x": "y"}
        ),
        node("cordoned", RACK="a") | {"spec": {"unschedulable": True}},
        node("dead", RACK="a", ready=False),
        node("homeless"),
        node("wrong", RACK="a"),
    ]
    spec = {"nodeSelector": {"x": "y"}}
    status = place(group(pod_set(9, required(), spec=spec)), nodes=nodes)
    assert status["message"] == (
        'topology "default" allows to fit only 4 out of 9 pod(s). Total nodes: 6; excluded:'
        ' nodeSelector: 3, taint "k:NoExecute": 1, taint "k=v:NoSchedule": 1'
    )
    status = place(group(pod_set(9, required(), spec={})), nodes=nodes[:2])
    assert status["message"] == (
        'topology "default" doesn\'t allow to fit any of 9 pod(s). Total nodes: 2; excluded:'
        ' resource "cpu": 1, resource "pods": 1'
    )


def test_pods_count_with_sidecars_overhead_and_a_place_each_unless_finished() -> None:
    running = pod("p", "a1", cpu=1)
    running["spec"]["initContainers"] = [
        {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    ]
    running["spec"]["overhead"] = {"cpu": "500m"}
    done = pod("q", "a2", phase="Succeeded", cpu=4)
    full = [pod(f"r{number}", "a3") for number in range(2)]
    nodes = [node("a1", RACK="a"), node("a2", RACK="a"), node("a3", RACK="a", pods=3)]
    status = place(group(pod_set(6, required())), nodes=nodes, pods=[running, done, *full])
    assert placed(status) == {"main": {"a1": 1, "a2": 4, "a3": 1}}


def test_assignments_of_groups_are_in_use_and_finished_pods_give_back() -> None:
    assignment = {
        "podSet": "main",
        "levels": [HOSTNAME],
        "domains": [{"values": ["a1"], "count": 4}, {"values": ["a2"], "count": 4}],
    }
    other = group(pod_set(8), name="other", status={"assignments": [assignment]})
    members = [
        pod("o1", "a1", group="other", cpu=1),
        pod("o2", "a2", group="other", phase="Succeeded", cpu=1),
    ]
    cluster = {"nodes": NODES[:3], "groups": [other], "pods": members}
    wanted = group(pod_set(5, required()))
    assert placed(offline.place(cluster, wanted, RACKS)) == {"main": {"a2": 1, "a3": 4}}
    status = offline.place(cluster, group(pod_set(6, required())), RACKS)
    assert status["message"].startswith('topology "default" allows to fit only 5 out of 6 pod(s)')
    assignment["domains"][1]["count"] = 3  # type: ignore[index]
    other["status"]["givenBack"] = 1  # the same place, no other
    assert offline.place(cluster, group(pod_set(6, required())), RACKS) == status


def test_a_group_that_is_placed_already_does_not_stand_in_its_own_way() -> None:
    wanted = group(pod_set(12, required()))
    first = place(wanted, nodes=NODES[:3])
    again = wanted | {"status": first}
    assert place(wanted, nodes=NODES[:3], groups=[again]) == first


def test_a_leader_is_placed_beside_its_workers() -> None:
    lead = pod_set(1, required(leaderGroup="j"), name="leader", cpu=2)
    work = pod_set(10, required(leaderGroup="j"), name="workers")
    assert placed(place(group(lead, work))) == {
        "leader": {"a1": 1},
        "workers": {"a1": 2, "a2": 4, "a3": 4},
    }


@pytest.mark.parametrize("first", ["leader", "workers"])
def test_without_its_workers_a_leader_is_alone(first: str) -> None:
    """As of a LeaderWorkerSet of size 1."""
    lead = pod_set(1, required(leaderGroup="j"), name="leader", cpu=2)
    none = pod_set(0, required(leaderGroup="j"), name="workers")
    sets = (lead, none) if first == "leader" else (none, lead)
    assert placed(place(group(*sets))) == {"leader": {"a1": 1}}


def test_pod_sets_after_one_another_see_what_was_taken() -> None:
    status = place(group(pod_set(12, required(), name="x"), pod_set(12, required(), name="y")))
    assert placed(status) == {
        "x": {"a1": 4, "a2": 4, "a3": 4},
        "y": {"b1": 4, "b2": 4, "b3": 4},
    }
    assert place(group(pod_set(12, required(), name="x"), pod_set(13, name="y")))["message"] == (
        'topology "default" allows to fit only 12 out of 13 pod(s)'
        '. Total nodes: 6; excluded: resource "cpu": 3'
    )


def test_a_host_takes_no_more_than_max_per_host() -> None:
    assert placed(place(group(pod_set(6, required(maxPerHost=2))))) == {
        "main": {"a1": 2, "a2": 2, "a3": 2}
    }
    assert place(group(pod_set(7, required(maxPerHost=2))))["message"] == (
        'topology "default" allows to fit only 6 out of 7 pod(s), at most 2 on each host'
    )


def test_nodes_of_one_path_share_a_leaf() -> None:
    using = settings("rack")
    status = place(group(pod_set(20, required())), using=using)
    assert status["message"] == 'topology "default" allows to fit only 12 out of 20 pod(s)'
    assert place(group(pod_set(12, required())), using=using)["assignments"] == [
        {
            "podSet": "main",
            "levels": ["example.com/rack"],
            "domains": [{"values": ["a"], "count": 12}],
        }
    ]


def test_a_label_with_a_comma_is_one_value() -> None:
    nodes = [node("n1", RACK="a,b"), node("n2", RACK="a")]
    status = place(group(pod_set(5, required())), nodes=nodes)
    assert status["message"].startswith('topology "default" allows to fit only 4 out of 5')


def test_a_hostname_counts_once() -> None:
    twice = [node("n1", RACK="a"), node("n2", RACK="a", labels={HOSTNAME: "n1"})]
    moved = [node("n3", RACK="b", labels={HOSTNAME: "n1"})]
    for nodes in (twice, twice + moved, [*reversed(twice + moved)]):
        status = place(group(pod_set(5, required())), nodes=nodes)
        assert status["message"] == 'topology "default" allows to fit only 4 out of 5 pod(s)'


def test_the_refusal_of_an_unknown_level_names_the_topology_that_has_it() -> None:
    levels = [{"nodeLabel": "example.com/rack"}, {"nodeLabel": HOSTNAME}]
    racks = {"metadata": {"name": "racks"}, "spec": {"levels": levels}}
    cluster = {"nodes": [node("n1", RACK="a"), node("n2", RACK="b")], "topologies": [racks]}
    message = offline.place(cluster, group(pod_set(5, required())))["message"]
    chosen = "the annotation placement.nri/topology: racks chooses it"
    assert message.endswith(f'topology "racks" has it: {chosen}')


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"required": "example.com/rak"},
            (
                "no requested topology level: example.com/rak; did you mean 'example.com/rack'?;"
                ' topology "default" has example.com/rack (6 nodes), kubernetes.io/hostname'
                " (6 nodes); 0 nodes carry the label example.com/rak"
            ),
        ),
        (
            {"required": "zone/socket"},
            (
                'no requested topology level: zone/socket; topology "default" has example.com/rack'
                " (6 nodes), kubernetes.io/hostname (6 nodes); 0 nodes report zones of type socket"
            ),
        ),
        (
            {"required": HOSTNAME, "slices": [{"level": "example.com/rack", "size": 1}]},
            (
                "podset slice topology example.com/rack is above the podset topology"
                " kubernetes.io/hostname"
            ),
        ),
        ({"unconstrained": True, "topology": "x"}, "there is no topology 'x'; there are: default"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(request_: Object, message: str) -> None:
    status = place(group(pod_set(2, request_)))
    assert (status["state"], status["message"]) == ("Unplaceable", message)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"required": "a", "preferred": "b"},
            "spec.podSets[0].request: required 'a' and preferred 'b' exclude each other",
        ),
        (
            required(slices=[{"level": HOSTNAME, "size": 0}]),
            "spec.podSets[0].request.slices[0].size: 0 is not from 1 to 2147483647",
        ),
        (
            required(slices=[{"level": HOSTNAME, "size": 5}]),
            "spec.podSets[0].count: 12 pods are no whole number of slices of 5",
        ),
        (
            required(slices=[{"level": "x", "size": 4}, {"level": HOSTNAME, "size": 3}]),
            "spec.podSets[0].request.slices[1].size: 3 does not divide 4",
        ),
        (
            required(slices=[{"level": "x", "size": 4}, {"level": "x", "size": 2}]),
            "spec.podSets[0].request.slices[1].level: 'x' is given twice",
        ),
        (
            required(maxPerHost=0),
            "spec.podSets[0].request.maxPerHost: 0 is not from 1 to 2147483647",
        ),
        (
            required(leaderGroup="7"),
            "spec.podSets[0].request.leaderGroup: '7' must not be a number",
        ),
        (
            required(leaderGroup="j"),
            "spec.podSets: leader group 'j' has 1 pod sets; it takes exactly two",
        ),
    ],
)
def test_a_request_that_contradicts_itself_is_an_error(request_: Object, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        place(group(pod_set(12, request_)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("leader", "problem"),
    [
        ({"required": "example.com/rack"}, ""),
        ({}, ""),  # it follows its workers
        ({"required": HOSTNAME}, f"required '{HOSTNAME}' and required 'example.com/rack'"),
        (
            {"preferred": "example.com/rack"},
            "preferred 'example.com/rack' and required 'example.com/rack'",
        ),
    ],
)
def test_a_leader_and_its_workers_name_the_same_level(leader: Object, problem: str) -> None:
    asked = group(
        pod_set(1, leader | {"leaderGroup": "g"}, name="leader"),
        pod_set(3, required(leaderGroup="g"), name="workers"),
    )
    if not problem:
        assert placed(place(asked)).keys() == {"leader", "workers"}
        return
    with pytest.raises(DocumentError) as caught:
        place(asked)
    text = f"leader group 'g' asks for {problem}; leader and workers name the same"
    assert str(caught.value) == f"spec.podSets: {text}"


def test_the_order_of_the_objects_has_no_influence() -> None:
    pods = [pod(f"p{number}", f"a{number}", cpu=number) for number in (1, 2, 3)]
    given = group(pod_set(7, {"preferred": "example.com/rack"}))
    first = place(given, pods=pods)
    assert place(given, nodes=NODES[::-1], pods=pods[::-1]) == first


def test_an_empty_cluster_has_no_domains() -> None:
    status = place(group(pod_set(1, required())), nodes=[])
    assert status["message"] == "no topology domains at level: example.com/rack"


def test_pod_sets_without_pods_are_skipped() -> None:
    assert placed(place(group(pod_set(0, required())))) == {}


def test_a_pod_set_without_a_request_changes_nothing_of_the_others() -> None:
    """The fullest host first and then the tightest; unconstrained pods go the other way."""
    nodes = [node("one", RACK="a"), node("two", RACK="a"), node("three", RACK="b")]
    taken = [pod("p", "one", cpu=1), pod("q", "two", cpu=2)]
    using = settings("rack", HOSTNAME)
    asks = pod_set(6, {"preferred": "example.com/rack"}, name="asks")
    alone = offline.place({"nodes": nodes, "pods": taken}, group(asks), using)
    quiet = pod_set(1, name="quiet")
    both = offline.place({"nodes": nodes, "pods": taken}, group(asks, quiet), using)
    assert placed(both)["asks"] == placed(alone)["asks"] == {"two": 2, "three": 4}


FREE_GPUS = [8, 1, 1, 1, 1, 1, 1, 2]
GPU_RACK = [node(f"h{at}", RACK="r", cpu=9, gpu=free) for at, free in enumerate(FREE_GPUS)]
IN_A_RACK = {"slices": [{"level": "example.com/rack", "size": 8}]}


def test_a_slice_goes_to_the_smallest_host_that_holds_it() -> None:
    status = place(group(pod_set(8, required() | IN_A_RACK, gpu=1)), nodes=GPU_RACK)
    assert placed(status) == {"main": {"h0": 8}}


@pytest.mark.parametrize("algorithm", ["Mixed", "BestFit", "LeastFree"])
@pytest.mark.parametrize("by_request", [True, False])
def test_other_algorithms_fill_the_fullest_hosts_first_as_kueue_does(
    algorithm: str, by_request: bool
) -> None:
    using = RACKS if by_request else settings("rack", HOSTNAME, algorithm=algorithm)
    asked = required() | IN_A_RACK | ({"algorithm": algorithm} if by_request else {})
    status = place(group(pod_set(8, asked, gpu=1)), nodes=GPU_RACK, using=using)
    assert len(placed(status)["main"]) == 7


def test_inner_slices_are_whole_on_the_fewest_hosts() -> None:
    """Pairs on hosts: the host with three free GPUs holds one pair, as those with two do."""
    nodes = [node(f"h{at}", RACK="r", gpu=free) for at, free in enumerate([2, 3, 4, 2])]
    layers = [{"level": "example.com/rack", "size": 6}, {"level": HOSTNAME, "size": 2}]
    status = place(group(pod_set(6, {"slices": layers}, gpu=1)), nodes=nodes)
    assert placed(status) == {"main": {"h0": 2, "h2": 4}}


def test_balanced_pods_are_compact_below_their_slices() -> None:
    asked = {"preferred": "example.com/rack", "algorithm": "Balanced"} | IN_A_RACK
    status = place(group(pod_set(8, asked, gpu=1)), nodes=GPU_RACK)
    assert placed(status) == {"main": {"h0": 8}}


def test_slices_alone_fill_the_fullest_racks_and_the_fewest_hosts_there() -> None:
    nodes = [node("a1", RACK="a", gpu=9), *GPU_RACK[:3], node("h9", RACK="r", gpu=4)]
    slices = {"slices": [{"level": "example.com/rack", "size": 4}]}
    status = place(group(pod_set(4, slices, gpu=1)), nodes=nodes)
    assert placed(status) == {"main": {"a1": 4}}


def test_slices_beside_a_group_name_are_those_of_the_workers() -> None:
    """As on the templates of a LeaderWorkerSet, of which both may have the annotations."""
    annotations = {
        "kueue.x-k8s.io/podset-required-topology": "example.com/rack",
        "kueue.x-k8s.io/podset-group-name": "g",
        "kueue.x-k8s.io/podset-slice-required-topology": HOSTNAME,
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    sets = [pod_set(1, name="leader", cpu=2), pod_set(4, name="workers", cpu=1)]
    for each in sets:
        each["template"]["metadata"] = {"annotations": annotations}
    found = placed(place(group(*sets), nodes=[node(f"a{n}", RACK="a", cpu=3) for n in range(3)]))
    assert set(found["workers"].values()) == {2}
    assert next(iter(found["leader"])) not in found["workers"]
    sets[1]["count"] = 3
    with pytest.raises(DocumentError, match=r"podSets.1..count: 3 pods are no whole number"):
        place(group(*sets))

"""NUMA fit by the rules' own tables, and by the answers of the plugin where they are at hand."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.numa.fit import NumaFit, find_common_zone
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.pod import PodSpec, read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.zones.numa_node import policy_of, select_zones
from nri_policy.cluster.zones.numa_request import NumaRequest, make_numa_request, qos_class
from nri_policy.cluster.zones.zone import NodeZones, read_zones
from nri_policy.native._numa_fit import NO_ZONE
from tests.support.shared_data import NOT_HERE

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[5] / "shared"))

Object = dict[str, Any]


def zones(*amounts: Object, policy: str = "single-numa-node", scope: str = "container") -> Object:
    """A NodeResourceTopology: what each NUMA node has available; it has 8 of each to allocate."""
    return {
        "metadata": {"name": "n"},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope},
        ],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "costs": [
                    {"name": f"node-{to}", "value": 10 if to == number else 20 + abs(to - number)}
                    for to in range(len(amounts))
                ],
                "resources": [
                    {"name": name, "capacity": 8, "allocatable": 8, "available": amount}
                    for name, amount in free.items()
                ],
            }
            for number, free in enumerate(amounts)
        ],
    }


def container(**amounts: Any) -> Object:
    """A container that asks what it is limited to; `gpu` is a device."""
    resources = {"a.com/gpu" if name == "gpu" else name: n for name, n in amounts.items()}
    return {"name": "c", "resources": {"limits": resources}}


def pod(*containers: Object, init: list[Object] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), "initContainers": init, **spec},
    }


def fit(document: Object | None, given: Object, *, stale: bool = False, **extender: Any) -> Object:
    """What is found out of one node that has CPU, memory and GPUs."""
    cluster = {
        "nodes": [{"metadata": {"name": "n"}, "status": {"allocatable": {"a.com/gpu": 8}}}],
        "zones": [document] if document else [],
        "stale": ["n"] if stale else [],
    }
    return offline.fit(cluster, given, {"spec": {"extender": extender}})["n"]


SMALL = container(cpu=2, memory=2)
BIG = container(cpu=4, memory=1)
HUGE = container(cpu=5, memory=1)
WIDER = container(cpu=6, memory=4)
SIDECAR, HUGE_SIDECAR = (each | {"restartPolicy": "Always"} for each in (BIG, HUGE))
TWO = ({"cpu": 2, "memory": 4}, {"cpu": 4, "memory": 4})
NOT_CONTAINER, NOT_POD = "cannot align container", "cannot align pod"
BURSTABLE = {"name": "c", "resources": {"requests": {"cpu": 9, "memory": 9}}}

FILTER: list[tuple[str, Object | None, Object, str]] = [
    # what is decided before zones are looked at
    ("BestEffort", zones({"cpu": 0}), pod(container()), ""),
    ("BestEffort with a device", zones({"a.com/gpu": 0}), pod(container(gpu=1)), NOT_CONTAINER),
    ("no zones known", None, pod(SMALL), ""),
    ("another policy", zones({"cpu": 0}, policy="restricted"), pod(SMALL), ""),
    # the table of one resource
    ("a quantity of 0", zones({"cpu": 8, "memory": 8}), pod(container(cpu=1, memory=1, gpu=0)), ""),
    ("not on the node", zones(*TWO), pod(container(cpu=1, memory=1, **{"b.com/x": 1})), "c"),
    ("a device of no zone", zones(*TWO), pod(container(cpu=1, memory=1, gpu=1)), ""),
    ("storage of no zone", zones(*TWO), pod(SMALL, container(**{"ephemeral-storage": 9})), ""),
    ("memory of no zone", zones({"cpu": 8}), pod(SMALL), NOT_CONTAINER),
    ("a zone without it", zones({"cpu": 8}, {"cpu": 1, "memory": 8}), pod(SMALL), NOT_CONTAINER),
    ("Burstable", zones({"cpu": 0, "memory": 0}), pod(BURSTABLE), ""),
    ("Burstable, no such zone", zones({"cpu": 0}), pod(BURSTABLE), NOT_CONTAINER),
    ("just enough", zones({"cpu": 2, "memory": 2}), pod(SMALL), ""),
    ("a billionth too little", zones({"cpu": "1999999999n", "memory": 2}), pod(SMALL), "c"),
    ("a fraction", zones({"cpu": "2.5", "memory": "2.5"}), pod(container(cpu="2.5", memory=2)), ""),
    ("a negative amount", zones({"cpu": -1, "memory": 8}), pod(SMALL), NOT_CONTAINER),
    ("no zones at all", zones(), pod(SMALL), NOT_CONTAINER),
    ("spread over zones", zones({"cpu": 1, "memory": 8}, {"cpu": 8, "memory": 1}), pod(SMALL), "c"),
    # several containers
    ("one after the other", zones(*TWO), pod(SMALL, SMALL, SMALL), ""),
    ("one too many", zones(*TWO), pod(SMALL, SMALL, SMALL, SMALL), NOT_CONTAINER),
    ("lowest zone first", zones(*TWO), pod(SMALL, BIG), ""),
    ("taken by the lower", zones(*TWO[::-1]), pod(SMALL, BIG), "c"),
    ("init containers alone", zones(*TWO), pod(SMALL, init=[container(cpu=4, memory=4)] * 3), ""),
    ("init too large", zones(*TWO), pod(SMALL, init=[HUGE]), "init"),
    ("sidecar too large", zones(*TWO), pod(SMALL, init=[HUGE_SIDECAR]), "sidecar"),
    ("sidecars like init", zones(*TWO), pod(SMALL, SMALL, SMALL, init=[SIDECAR]), ""),
    # scope pod
    ("sum in one", zones(*TWO, scope="pod"), pod(SMALL, SMALL), ""),
    ("sum too large", zones(*TWO, scope="pod"), pod(SMALL, SMALL, SMALL), NOT_POD),
    ("overhead", zones(*TWO, scope="pod"), pod(SMALL, SMALL, overhead={"cpu": 1}), NOT_POD),
    ("init beside none", zones(*TWO, scope="pod"), pod(SMALL, init=[BIG]), ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "given", "reason"), [row[1:] for row in FILTER], ids=[row[0] for row in FILTER]
)
def test_the_filter(document: Object | None, given: Object, reason: str) -> None:
    texts = {"c": NOT_CONTAINER, "init": "cannot align init container"}
    texts["sidecar"] = "cannot align sidecar container"
    found = fit(document, given)
    assert found["reason"] == texts.get(reason, reason)
    assert found["fits"] == (not reason)


def test_stale_zones_reject_all_but_best_effort_pods() -> None:
    assert fit(zones(*TWO), pod(SMALL), stale=True)["reason"] == "invalid node topology data"
    assert fit(None, pod(SMALL), stale=True)["reason"] == "invalid node topology data"
    assert fit(zones(*TWO), pod(container()), stale=True)["fits"]


LARGE = {"cpu": 5, "memory": 4}
POD_LEVEL = pod(SMALL, resources={"requests": LARGE, "limits": LARGE})
STRICT: list[tuple[str, Object, Object]] = [
    ("a sidecar stays", zones(*TWO), pod(SMALL, SMALL, init=[SIDECAR])),
    ("init beside a sidecar", zones(*TWO, TWO[0]), pod(SMALL, init=[SIDECAR, BIG])),
    ("sidecars add up", zones(*TWO, scope="pod"), pod(SMALL, init=[SIDECAR])),
    ("the pod's own", zones(*TWO, scope="pod"), POD_LEVEL),
]


@pytest.mark.parametrize(
    ("document", "given"), [row[1:] for row in STRICT], ids=[row[0] for row in STRICT]
)
def test_strict_rejects_what_does_not_fit_side_by_side(document: Object, given: Object) -> None:
    assert fit(document, given)["fits"]
    assert not fit(document, given, strict=True)["fits"]


EIGHT = {"cpu": 8, "memory": 4}
WIDE = ({"cpu": 4, "memory": 4},) * 3
LEAST, MOST = "LeastAllocated", "MostAllocated"
BALANCED, FEWEST = "BalancedAllocation", "LeastNUMANodes"
NO_CPU = {"cpu": 0, "memory": 2}
FAR = (WIDE[0], NO_CPU, WIDE[0])
SCORES: list[tuple[str, str, Object | None, Object, int]] = [
    ("not Guaranteed", LEAST, zones(EIGHT), pod(BURSTABLE), 100),
    ("no zones known", LEAST, None, pod(SMALL), 0),
    ("another policy", MOST, zones(EIGHT, policy="none"), pod(SMALL), 0),
    ("least: (75 + 50) / 2", LEAST, zones(EIGHT), pod(SMALL), 62),
    ("most: (25 + 50) / 2", MOST, zones(EIGHT), pod(SMALL), 37),
    ("balance: 1 - 1/32", BALANCED, zones(EIGHT), pod(SMALL), 96),
    ("balance: too much", BALANCED, zones({"cpu": 1, "memory": 4}), pod(SMALL), 0),
    ("balance: nothing left", BALANCED, zones(NO_CPU), pod(SMALL), 100),
    ("least of all zones", LEAST, zones(EIGHT, {"cpu": 4, "memory": 4}), pod(SMALL), 50),
    ("zones of 0 aside", LEAST, zones(EIGHT, {"cpu": 1, "memory": 1}), pod(SMALL), 62),
    ("mean of containers", LEAST, zones(EIGHT), pod(SMALL, container(cpu=8, memory=4)), 31),
    ("sum of containers", LEAST, zones(EIGHT, scope="pod"), pod(SMALL, SMALL), 25),
    ("0 counts as asked", LEAST, zones(EIGHT), pod(container(cpu=2, memory=2, gpu=0)), 41),
    ("rounded up", LEAST, zones(EIGHT), pod(container(cpu="500m", memory=4)), 43),
    ("one zone of eight", FEWEST, zones(*WIDE), pod(SMALL), 94),
    ("two zones", FEWEST, zones(*WIDE), pod(WIDER), 82),
    ("farther than others", FEWEST, zones(*FAR), pod(WIDER), 76),
    ("whatever the policy", FEWEST, zones(*FAR, policy="none"), pod(WIDER), 76),
    ("all zones are too few", FEWEST, zones(*WIDE), pod(container(cpu=13, memory=1)), 0),
    ("what no zone lists", FEWEST, zones({"cpu": 8}), pod(SMALL), 0),
    ("nothing that a zone lists", FEWEST, zones({"a.com/gpu": 1}), pod(SMALL), 100),
    ("most of containers", FEWEST, zones(*WIDE), pod(SMALL, WIDER), 82),
]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "document", "given", "score"),
    [row[1:] for row in SCORES],
    ids=[row[0] for row in SCORES],
)
def test_the_score(strategy: str, document: Object | None, given: Object, score: int) -> None:
    assert fit(document, given, strategy=strategy)["score"] == score


def test_weights_below_one_are_one() -> None:
    weights = {"cpu": 3, "memory": 0}
    assert fit(zones(EIGHT), pod(SMALL), resources=weights)["score"] == (3 * 75 + 50) // 4


POLICIES: list[tuple[list[str], list[tuple[str, str]], tuple[str, str, int]]] = [
    ([], [], ("none", "container", 8)),
    (["SingleNUMANodePodLevel"], [], ("single-numa-node", "pod", 8)),
    (["SingleNUMANodeContainerLevel"], [], ("single-numa-node", "container", 8)),
    (["RestrictedPodLevel"], [], ("restricted", "pod", 8)),
    (["BestEffortContainerLevel"], [], ("best-effort", "container", 8)),
    (["Restricted"], [], ("none", "container", 8)),
    (["SingleNUMANode", "SingleNUMANodePodLevel"], [], ("none", "container", 8)),
    (["SingleNUMANodePodLevel"], [("Policy", "none")], ("single-numa-node", "pod", 8)),
    (["SingleNUMANodePodLevel"], [("topologyManagerPolicy", "x")], ("single-numa-node", "pod", 8)),
    ([], [("topologyManagerScope", "pod"), ("topologyManagerScope", "x")], ("none", "pod", 8)),
    ([], [("topologyManagerPolicy", "restricted"), ("topologyManagerPolicy", "none")],
     ("none", "container", 8)),
    ([], [("topologyManagerMaxNUMANodes", "2")], ("none", "container", 2)),
    ([], [("topologyManagerMaxNUMANodes", "1")], ("none", "container", 8)),
    ([], [("topologyManagerMaxNUMANodes", "-4")], ("none", "container", 8)),
    ([], [("topologyManagerMaxNUMANodes", "4096")], ("none", "container", 1024)),
]  # fmt: skip


@pytest.mark.parametrize(("policies", "attributes", "expected"), POLICIES)
def test_the_policy(
    policies: list[str], attributes: list[tuple[str, str]], expected: tuple[str, str, int]
) -> None:
    document = NodeZones("n", policies=tuple(policies), attributes=tuple(attributes))
    assert policy_of(document) == expected


def test_zones_of_other_types_and_names_are_passed_over_and_counted() -> None:
    document = zones({"cpu": 8, "memory": 8})
    for name, kind in (
        ("node-0", "numa node"), ("node-0", "node"), ("", "Node"), ("node-", "Node"),
        ("node--1", "Node"), ("node6", "Node"), ("Node-1", "Node"), ("node-1 ", "Node"),
        ("node-٣", "Node"), ("node-9999999999", "Node"), ("node-0", "Node"), ("node-5000", "Node"),
    ):  # fmt: skip
        document["zones"].append({"name": name, "type": kind})
    found, ignored = select_zones(read_zones(document, "").zones)
    assert list(found) == [0, 5000]
    assert ignored == {"other type": 2, "name is not node-N": 8, "same id": 1}
    assert not found[0].free  # the last of equals counts
    assert fit(document, pod(SMALL))["reason"] == NOT_CONTAINER


@pytest.mark.parametrize("strategy", ["LeastAllocated", "LeastNUMANodes"])
def test_sparse_ids_and_ids_over_a_thousand_are_zones_like_others(strategy: str) -> None:
    document = zones({"cpu": 1, "memory": 8}, {"cpu": 8, "memory": 8})
    plain = fit(document, pod(SMALL), strategy=strategy)
    for zone in document["zones"]:
        for each in (zone, *zone["costs"]):
            each["name"] = each["name"].replace("node-1", "node-1999").replace("node-0", "node-70")
    assert fit(document, pod(SMALL), strategy=strategy) == plain
    assert plain["fits"]


def test_a_node_with_thousands_of_zones_takes_no_longer_than_it_may() -> None:
    """Of 3,000 zones 1,024 count; the sets of these are not all looked at."""
    document = zones({"cpu": 1, "memory": 1})
    (zone,) = document["zones"]
    document["zones"] = [zone | {"name": f"node-{number}"} for number in range(3000)]
    _, ignored = select_zones(read_zones(document, "").zones)
    assert ignored == {"more than 1024": 1976}
    asked = pod(container(cpu=20, memory=20))
    assert fit(document, asked, strategy="LeastNUMANodes")["score"] == 0  # 20 zones are beyond 100


def test_zones_of_nodes_that_are_not_there_are_of_no_concern() -> None:
    found = offline.fit({"zones": [zones(*TWO)]}, pod(SMALL))
    assert found == {}


def test_a_quantity_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(DocumentError, match=r"zones\[0\]\.zones\[0\]\.resources\.cpu: 'x' is not"):
        fit(zones({"cpu": "x"}), pod(SMALL))


QOS: list[tuple[Object, str]] = [
    (pod(container()), "BestEffort"),
    (pod(container(gpu=1)), "BestEffort"),
    (pod(container(cpu=0)), "BestEffort"),
    (pod(container(cpu=1)), "Burstable"),
    (pod(SMALL), "Guaranteed"),
    (pod(SMALL, container()), "Burstable"),
    (pod(SMALL, init=[container(cpu=1)]), "Burstable"),
    (pod(SMALL, init=[SMALL]), "Guaranteed"),
    (pod(BURSTABLE), "Burstable"),
    (pod({"name": "c", "resources": {"requests": {"cpu": 1}, "limits": {"cpu": 2, "memory": 1}}}),
     "Burstable"),
    (pod(container(), resources={"limits": {"cpu": 1, "memory": 1}}), "Guaranteed"),
    (pod(SMALL, resources={"requests": {"cpu": 1}}), "Burstable"),
    (pod(SMALL, resources={"limits": {"cpu": 2, "memory": 2}}), "Guaranteed"),
    (pod(SMALL, resources={"limits": {"cpu": 5, "memory": 2}}), "Burstable"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), QOS)
def test_the_qos_class(given: Object, expected: str) -> None:
    assert qos_class(read_pod(given, "").spec) == expected


def filled(document: Object) -> NumaFit:
    fits = NumaFit(Extender())
    fits.put("n", fits.reader.read(["a.com/gpu"], read_zones(document, ""), stale=False)[0])
    return fits


def test_the_zone_of_each_container_is_the_lowest_that_fits() -> None:
    fits = filled(zones(*TWO))
    chosen = {
        name: fits.zones("n", fits.request(read_pod(given, "")))
        for name, given in {
            "one": pod(SMALL),
            "two": pod(SMALL, SMALL),
            "init": pod(SMALL, init=[BIG]),
            "free": pod(container(cpu=1, memory=1), container(cpu=0, memory=0)),
            "none": pod(container(cpu=9, memory=1)),
        }.items()
    }
    assert chosen == {
        "one": (0,), "two": (0, 1), "init": (1, 0), "free": (0, NO_ZONE), "none": None,
    }  # fmt: skip
    assert [find_common_zone(each) for each in chosen.values()] == [0, None, None, 0, None]
    assert fits.zones("other", fits.request(read_pod(pod(SMALL), ""))) is None


def test_a_pod_is_aligned_in_all_where_the_scope_is_the_pod() -> None:
    fits = filled(zones(*TWO, scope="pod"))
    assert fits.zones("n", fits.request(read_pod(pod(SMALL, SMALL), ""))) == (1,)


def test_a_resource_that_comes_later_counts_for_pods_that_came_before() -> None:
    fits = filled(zones(*TWO))
    request = fits.request(read_pod(pod(container(cpu=1, memory=1, **{"new.com/x": 1})), ""))
    assert fits.ask(request).verdicts[0]
    document = read_zones(zones({"cpu": 8, "memory": 8, "new.com/x": 1}), "")
    fits.put("m", fits.reader.read(["new.com/x"], document, stale=False)[0])
    assert list(fits.ask(request).verdicts) != [0, 0]
    assert fits.ask(request).verdicts[fits.slots["m"]] == 0


def test_what_is_kept_has_a_bound() -> None:
    fits = filled(zones(*TWO))
    first = fits.request(read_pod(pod(SMALL), ""))
    kept = fits.ask(first)
    for number in range(64):
        assert fits.ask(first) is kept  # used again and again
        fits.ask(fits.request(read_pod(pod(container(cpu=number, memory=1)), "")))
    for number in range(65):
        fits.ask(fits.request(read_pod(pod(container(cpu=1, memory=number)), "")))
    assert fits.ask(first) is not kept


ORACLE = SHARED / "oracles" / "numa_fit.json.gz"


@pytest.mark.skipif(not ORACLE.exists(), reason=NOT_HERE)
def test_the_answers_are_the_plugins() -> None:
    """Verdict, reason and score of each recorded case."""
    cases = json.loads(gzip.decompress(ORACLE.read_bytes()))["vectors"]
    for number, case in enumerate(cases):
        given, expected = case["in"], case["out"]
        name = given["node"]["metadata"]["name"]
        cluster = {
            "nodes": [given["node"]],
            "zones": [given["nrt"]] if given["nrt"] else [],
            "stale": [name] if given["stale"] else [],
        }
        extender = {"strategy": given["strategy"], "resources": given["weights"]}
        found = offline.fit(cluster, given["pod"], {"spec": {"extender": extender}})
        assert found == {
            name: {
                "fits": expected["filter"] == "Success",
                "reason": expected.get("reasons", [""])[0],
                "score": expected["score"],
            }
        }, number
    assert len(cases) > 1000


def test_what_pods_of_one_spec_ask_is_found_once_until_the_settings_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bool] = []

    def find(spec: PodSpec, *, strict: bool) -> NumaRequest:
        read.append(strict)
        return make_numa_request(spec, strict=strict)

    monkeypatch.setattr("nri_policy.cluster.numa.fit.make_numa_request", find)
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    one, other = (read_pod({"metadata": {"name": name}, "spec": spec}, "") for name in "ab")
    fits = NumaFit(Extender(strict=True))
    assert fits.request(one) is fits.request(other)
    fits.configure(Extender(strict=False))
    fits.request(one)
    assert read == [True, False]

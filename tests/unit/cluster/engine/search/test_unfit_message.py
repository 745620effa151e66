"""Why a group does not fit: what its message says."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.document import DocumentError
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, settings

RACK = "example.com/rack"
USING = settings("rack", HOSTNAME)
NODES = [node(f"{rack}{number}", RACK=rack) for rack in "ab" for number in (1, 2)]


def refused(*pod_sets: Object, nodes: Any = NODES, using: Object = USING) -> str:
    """The message of a group without places."""
    status = offline.place({"nodes": nodes}, group(*pod_sets), using)
    assert status["state"] == "Unplaceable"
    return str(status["message"])


def test_layers_of_slices_are_counted_one_by_one() -> None:
    layers = [{"level": RACK, "size": 4}, {"level": HOSTNAME, "size": 2}]
    message = refused(pod_set(8, {"required": RACK, "slices": layers}, cpu=2))
    assert message == (
        'topology "default" doesn\'t allow to fit; 1/2 slice(s) fit on level example.com/rack;'
        " 2/4 slice(s) fit on level kubernetes.io/hostname"
    )


def test_a_node_counts_under_the_first_reason_that_excludes_it() -> None:
    wanted = {"key": "example.com/rack", "operator": "In", "values": ["c"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    tainted = node("b3", RACK="b", taints=[{"key": "k", "effect": "NoSchedule"}])
    message = refused(pod_set(1, spec={"affinity": affinity}), nodes=[*NODES, tainted])
    assert message.endswith('. Total nodes: 5; excluded: affinity: 4, taint "k:NoSchedule": 1')
    chosen = {"nodeSelector": {"example.com/rack": "c"}, "affinity": affinity}
    assert refused(pod_set(1, spec=chosen)).endswith("excluded: nodeSelector: 4")


def test_pod_sets_that_are_to_be_together_name_one_topology() -> None:
    topologies = [{"name": name, "levels": [RACK, HOSTNAME]} for name in ("x", "y")]
    given = group(*(pod_set(1, {"topology": name}, name=name) for name in ("x", "y")))
    given["spec"]["together"] = {"required": RACK}
    status = offline.place({"nodes": NODES}, given, {"spec": {"topologies": topologies}})
    assert status["message"] == "pod sets that are to be together name different topologies"


def test_a_topology_that_is_not_there_is_no_answer_of_spreading() -> None:
    asked = group(pod_set(1, {"topology": "racks", "spreadOver": [RACK]}))
    with pytest.raises(DocumentError) as error:
        offline.spread({"nodes": NODES}, asked, USING)
    assert str(error.value) == (
        "spec.podSets[0].request.topology: there is no topology 'racks'; there are: default"
    )


def test_a_misspelt_level_of_the_settings_is_not_offered_to_who_asks_for_the_right_one() -> None:
    misspelt = settings("rak", HOSTNAME)
    message = refused(pod_set(1, {"required": RACK}), using=misspelt)
    assert "did you mean" not in message
    assert "no node has example.com/rak, perhaps a misspelt example.com/rack" in message
    message = refused(pod_set(1, {"required": "example.com/rak"}), using=settings(HOSTNAME))
    assert "example.com/rak; did you mean 'example.com/rack'?" in message


def test_a_misspelt_zone_type_of_the_settings_is_not_offered_either() -> None:
    """Sockets nobody reports, so they are offered to nobody."""
    using = settings(HOSTNAME, topology={"belowHost": ["socket", "Nod"]})
    cluster = {"nodes": NODES, "zones": [zone_report("a1", 4, 4, memory=1)]}

    def message(level: str, given: Object = using) -> str:
        asked = group(pod_set(1, {"required": level}))
        return str(offline.place(cluster, asked, given)["message"])

    found = message("zone/Node")
    assert "did you mean" not in found
    assert "no node has zone/Nod, perhaps a misspelt zone/Node in the settings" in found
    assert "no requested topology level: zone/sockt; topology" in message("zone/sockt")
    node_zones = settings(HOSTNAME, topology={"belowHost": ["Node"]})
    assert "zone/Noode; did you mean 'zone/Node'?" in message("zone/Noode", node_zones)

"""Every case that Kueue was asked: the same assignments, the same texts."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster import offline
from tests.support.shared_data import NOT_HERE
from tests.unit.cluster.written import HOSTNAME

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[5] / "shared"))
RECORDED = SHARED / "oracles" / "packing.json.gz"

Object = dict[str, Any]


def amounts(values: dict[str, int]) -> Object:
    return {name: f"{value}m" if name == "cpu" else str(value) for name, value in values.items()}


def template(requests: dict[str, int], **spec: Any) -> Object:
    containers = [{"name": "c", "resources": {"requests": amounts(requests)}}]
    return {"containers": containers, **{key: value for key, value in spec.items() if value}}


def usage_of_others(case: Object) -> list[Object]:
    """What other groups use: the recording has the own use of a group that is replaced, too."""
    usage = [*case["prior_usage"]]
    per_pod = {each["name"]: each["per_pod"] for each in case["podsets"]}
    for name, given in (case.get("existing_assignments") or {}).items():
        for each in given["domains"]:
            usage.remove({**each, "per_pod": per_pod[name]})
    return usage


def cluster_of(case: Object) -> Object:
    nodes = [
        {
            "metadata": {"name": each["name"], "labels": each["labels"]},
            "spec": {"unschedulable": each["unschedulable"], "taints": each["taints"]},
            "status": {
                "allocatable": amounts(each["allocatable"]),
                "conditions": [{"type": "Ready", "status": str(each["ready"])}],
            },
        }
        for each in case["nodes"]
    ]
    pods = [
        {
            "metadata": {"name": each["name"], "namespace": each["namespace"]},
            "spec": {"nodeName": each["node"], **template(each["requests"])},
            "status": {"phase": each["phase"]},
        }
        for each in case["non_tas_pods"]
    ]
    levels = case["levels"]
    levels = [HOSTNAME] if levels[-1] == HOSTNAME else levels
    groups = [
        {
            "metadata": {"name": f"prior-{number}"},
            "spec": {
                "podSets": [
                    {
                        "name": "p",
                        "count": used["count"],
                        "template": {"spec": template(used["per_pod"])},
                    }
                ]
            },
            "status": {
                "assignments": [
                    {
                        "podSet": "p",
                        "levels": levels,
                        "domains": [{"values": used["values"], "count": used["count"]}],
                    }
                ]
            },
        }
        for number, used in enumerate(usage_of_others(case))
    ]
    if case["options"]["simulate_empty"]:
        groups = []
    return {"nodes": nodes, "pods": pods, "groups": groups}


def pod_set_of(given: Object) -> Object:
    affinity = {"nodeAffinity": given["node_affinity"]} if "node_affinity" in given else None
    spec = template(
        given["per_pod"],
        nodeSelector=given.get("node_selector"),
        tolerations=given.get("tolerations"),
        affinity=affinity,
    )
    request: Object = {}
    if given["mode"] in ("required", "preferred"):
        request[given["mode"]] = given["level"]
    elif given["mode"] == "unconstrained":
        request["unconstrained"] = True
    if given.get("slices"):
        request["slices"] = given["slices"]
    if given.get("group"):
        request["leaderGroup"] = given["group"]
    made = {"name": given["name"], "count": given["count"], "template": {"spec": spec}}
    return made | ({"request": request} if request else {})


def group_of(case: Object) -> Object:
    group: Object = {
        "metadata": {"name": "g"},
        "spec": {"podSets": [pod_set_of(each) for each in case["podsets"]]},
    }
    if case.get("existing_assignments"):
        assigned = [{"podSet": name, **each} for name, each in case["existing_assignments"].items()]
        group["status"] = {"assignments": assigned, "unhealthyNodes": case["unhealthy_nodes"]}
    return group


def settings_of(case: Object) -> Object:
    options = case["options"]
    topology = {
        "name": case["topology"],
        "levels": case["levels"],
        "nodeLabels": case["flavor_node_labels"],
        "tolerations": case["flavor_tolerations"],
    }
    return {
        "spec": {
            "topologies": [topology],
            "algorithm": "Mixed" if options["profile_mixed"] else "BestFit",
            "balanced": options["balanced_placement"],
            "preferredNodeAffinity": options["preferred_node_affinity"],
        }
    }


def expected(case: Object) -> Object:
    answers = case["expected"]
    errors = [each["error"] for each in answers.values() if each["error"]]
    if errors:
        return {"state": "Unplaceable", "message": errors[0], "assignments": []}
    assigned = [
        {"podSet": each["name"], **answers[each["name"]]["assignment"]}
        for each in case["podsets"]
        if each["name"] in answers
    ]
    return {"state": "Placed", "message": "", "assignments": assigned}


# Kueue has no answer where single pods of slices alone are to be replaced; ours complete a slice.
NO_LEVEL = "topology level not specified"


def is_beyond_kueue(case: Object) -> bool:
    asked = any(each["mode"] == "slice-only" for each in case["podsets"])
    refused = any(each["error"] == NO_LEVEL for each in case["expected"].values())
    return bool(case.get("existing_assignments")) and asked and refused


OURS = re.compile(r", (\d+|none) beside the leader")  # what Kueue does not say


@pytest.mark.skipif(not RECORDED.exists(), reason=NOT_HERE)
def test_answers_are_those_of_kueue() -> None:
    cases = json.loads(gzip.decompress(RECORDED.read_bytes()))["vectors"]
    assert len(cases) > 1000
    assert sum(map(is_beyond_kueue, cases)) < 10
    for case in cases:
        if is_beyond_kueue(case):
            continue
        answer = offline.place(cluster_of(case), group_of(case), settings_of(case))
        answer["message"] = OURS.sub("", answer["message"])
        assert answer == expected(case), case["name"]

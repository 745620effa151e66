"""What is applied for placement groups says what the service means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.cli.cluster.run import run
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.annotations import (
    JOBSET_EXCLUSIVE,
    LWS_EXCLUSIVE,
    LWS_SUBGROUP_EXCLUSIVE,
    MAX_PER_HOST,
    MOVABLE,
    POD_GROUP,
    SPREAD_OVER,
    asks_only_to_spread,
)
from nri_policy.cluster.workloads.membership import LWS

CONFIGS = Path(__file__).parents[3] / "configs" / "kustomize" / "cluster-groups"


def documents(name: str) -> list[Any]:
    return [*yaml.safe_load_all((CONFIGS / name).read_text())]


def test_the_policy_and_the_patch_set_the_gate_that_the_service_opens() -> None:
    gate = ClusterSettings().groups.gate
    policy, binding = documents("gate-policy.yaml")
    (mutation,) = policy["spec"]["mutations"]
    assert f'name: "{gate}"' in mutation["applyConfiguration"]["expression"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    ((operation,),) = documents("gate-patch.yaml")
    assert operation["value"] == [{"name": gate}]


def test_the_policy_and_place_know_the_same_keys_of_pods_that_ask_only_to_be_spread() -> None:
    """The rule itself is tried on a real API server: tests/cluster/test_groups.py."""
    conditions = documents("gate-policy.yaml")[0]["spec"]["matchConditions"]
    (rule,) = [each["expression"] for each in conditions if "spread" in each["name"]]
    lists = [{*re.findall(r"'([^']+)'", each)} for each in re.findall(r" in \[([^]]+)\]", rule)]
    kinds, spread, more = lists
    assert kinds == {"ReplicaSet", "StatefulSet"}
    assert more == {POD_GROUP, LWS, JOBSET_EXCLUSIVE, LWS_EXCLUSIVE, LWS_SUBGROUP_EXCLUSIVE}
    assert spread == {SPREAD_OVER, MAX_PER_HOST, MOVABLE}
    assert asks_only_to_spread(dict.fromkeys(spread, ""), {})
    for key in (*more - {POD_GROUP, LWS}, *re.findall(r"startsWith\('([^']+)'", rule)):
        assert not asks_only_to_spread({key: ""}, {}), key


def test_only_the_account_of_the_service_writes_a_status() -> None:
    policy, binding = documents("admission.yaml")
    (subject,) = documents("rbac.yaml")[1]["subjects"]
    (validation,) = policy["spec"]["validations"]
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert validation["expression"] == f"request.userInfo.username == '{account}'"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


RESTRICTIONS = [CONFIGS / "restriction.yaml", CONFIGS.parents[1] / "cluster" / "restriction.yaml"]


@pytest.mark.parametrize("path", RESTRICTIONS, ids=lambda path: path.parent.name)
def test_each_restriction_is_of_the_account_of_the_service_and_is_bound(path: Path) -> None:
    """The writes themselves are tried on a real API server: tests/cluster/test_rights.py."""
    every = [*yaml.safe_load_all(path.read_text())]
    (subject,) = documents("rbac.yaml")[1]["subjects"]
    account = f"'system:serviceaccount:{subject['namespace']}:{subject['name']}'"
    for policy, binding in zip(every[::2], every[1::2], strict=True):
        (condition,) = policy["spec"]["matchConditions"]
        operator = {"is-the-service": "==", "is-not-the-service": "!="}[condition["name"]]
        assert condition["expression"] == f"request.userInfo.username {operator} {account}"
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]
    variables = [each for policy in every for each in policy["spec"].get("variables", ())]
    gates = [each["expression"] for each in variables if each["name"] == "gate"]
    assert gates in ([], [f"'{ClusterSettings().groups.gate}'"])


def test_the_argument_that_is_added_is_one_of_the_command() -> None:
    (kustomization,) = documents("kustomization.yaml")
    (operation,) = yaml.safe_load(kustomization["patches"][0]["patch"])
    assert operation["value"] in {name for each in run.params for name in each.opts}


def test_two_replicas_are_not_guarded_by_a_budget_and_may_both_go_at_an_update() -> None:
    """One replica is ready at most: a budget would keep the leader's node from being drained."""
    every = [
        each
        for path in (CONFIGS.parents[1] / "cluster", CONFIGS)
        for file in path.glob("*.yaml")
        for each in yaml.safe_load_all(file.read_text())
        if isinstance(each, dict)  # a patch is a list
    ]
    (deployment,) = [each for each in every if each.get("kind") == "Deployment"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 2
    chart = CONFIGS.parents[1] / "helm" / "nri-policy" / "templates" / "cluster.yaml"
    assert not [each for each in every if each.get("kind") == "PodDisruptionBudget"]
    assert "PodDisruptionBudget" not in chart.read_text()

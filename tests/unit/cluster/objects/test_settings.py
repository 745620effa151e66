"""ClusterPlacement is read as the node's settings are: all errors at once, each with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import ClusterSettings, Topology, load, read_settings
from nri_policy.settings import SettingsError

SAMPLE = Path(__file__).resolve().parents[4] / "configs/cluster/settings.yaml"

WRONG = """\
apiVersion: config.nri/v1alpha1
kind: ClusterPlacment
spec:
  algorithm: BestFlt
  topologies:
  - name: a
    levels: [example.com/rack]
    belowHost: [Node]
  - name: b
    level: [example.com/rack]
    tolerations: [{operator: 3}]
  - rack
  failure: {failFast: sometimes}
"""


def test_the_sample_has_every_field_and_its_default() -> None:
    assert load(SAMPLE.read_bytes(), "") == ClusterSettings()
    spec = SAMPLE.read_text().partition("spec:")[2]
    for section in (ClusterSettings, Topology):
        for name in section.__struct_encode_fields__:
            assert f"{name}:" in spec


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(WRONG, "placement.yaml")
    assert str(caught.value).splitlines() == [
        "placement.yaml: 7 errors:",
        "  line 2, column 1: kind: 'ClusterPlacment' is not ClusterPlacement",
        (
            "  line 4, column 3: spec.algorithm: 'BestFlt' is not one of Compact, Mixed, BestFit,"
            " LeastFree; did you mean 'BestFit'?"
        ),
        (
            "  line 8, column 5: spec.topologies[0].belowHost: zones come only behind the level"
            " kubernetes.io/hostname"
        ),
        "  line 10, column 5: spec.topologies[1].level: unknown field; did you mean 'levels'?",
        (
            "  line 11, column 20: spec.topologies[1].tolerations[0].operator: expected a"
            " string or null, got a whole number"
        ),
        "  line 12, column 5: spec.topologies[2]: 'rack' is not a map",
        "  line 13, column 13: spec.failure.failFast: 'sometimes' is not true or false",
    ]


@pytest.mark.parametrize(
    ("toleration", "text"),
    [
        ({"operator": "Exsts"}, "operator: 'Exsts' is not one of Exists, Equal; did you mean"),
        ({"key": "k", "effect": "NoRun"}, "effect: 'NoRun' is not one of NoSchedule, PreferNoS"),
        ({"value": "v"}, "key: it is required unless the operator is Exists"),
    ],
)
def test_tolerations_that_tolerate_nothing_are_refused(
    toleration: dict[str, str], text: str
) -> None:
    spec = {"topologies": [{"tolerations": [{"key": "k"}, toleration]}]}
    with pytest.raises(DocumentError, match=re.escape(f"topologies[0].tolerations[1].{text}")):
        read_settings({"spec": spec})


@pytest.mark.parametrize("gate", ["a b", "x" * 64, "-a", "a/b/c", "A.com/x", "example.com/"])
def test_a_gate_that_no_pod_can_have_is_refused(gate: str) -> None:
    with pytest.raises(DocumentError, match="is no name of a gate"):
        read_settings({"spec": {"groups": {"gate": gate}}})
    assert (
        read_settings({"spec": {"groups": {"gate": "x.org/My_g.1"}}}).groups.gate == "x.org/My_g.1"
    )


def test_zones_are_of_hosts() -> None:
    with pytest.raises(SettingsError, match=r"line 4.* zones come only behind the level"):
        load(
            "apiVersion: config.nri/v1alpha1\nkind: ClusterPlacement\nspec:\n"
            "  topologies: [{levels: [rack], belowHost: [Node]}]\n",
            "",
        )


def test_zones_behind_a_misspelt_hostname_say_what_is_misspelt() -> None:
    topology = {"levels": ["kubernetes.io/hostnme"], "belowHost": ["Node"]}
    text = "behind the level kubernetes.io/hostname; 'kubernetes.io/hostnme' is another label"
    with pytest.raises(ValueError, match=text):
        read_settings({"spec": {"topologies": [topology]}})


def test_names_are_told_apart() -> None:
    with pytest.raises(ValueError, match=r"^spec.topologies\[1\].name: 'default' names two"):
        read_settings({"spec": {"topologies": [{}, {}]}})


def test_there_is_a_topology() -> None:
    with pytest.raises(ValueError, match=r"^spec.topologies: at least one topology is required"):
        read_settings({"spec": {"topologies": []}})


def test_settings_of_a_node_are_called_that() -> None:
    node = "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\nspec: {pinCPU: true}"
    with pytest.raises(SettingsError) as caught:
        load(node, "node.yaml")
    assert str(caught.value) == (
        "node.yaml: line 2, column 1: kind: 'TopologyAwarePolicy' is not ClusterPlacement: these"
        " are a node's settings; `nri-policy config check` checks them"
    )

"""The kinds of the cluster side are as the types say, and as API servers take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import cluster_schema

PROJECT = Path(__file__).resolve().parents[3]
FILES = {
    "placement-groups-crd.yaml": ("placementgroups", "PlacementGroup"),
    "settings-crd.yaml": ("clusterplacements", "ClusterPlacement"),
}


def crd(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PROJECT / cluster_schema.FOLDER / name).read_text())
    return found


def test_what_is_generated_is_what_the_types_say(tmp_path: Path) -> None:
    cluster_schema.generate(tmp_path)
    written = [each.relative_to(tmp_path) for each in tmp_path.rglob("*") if each.is_file()]
    assert len(written) == 2 * len(FILES)  # beside the manifests, and in the chart
    for name in written:
        assert (tmp_path / name).read_text() == (PROJECT / name).read_text(), (
            f"{name} is old: run `make kubernetes`"
        )


@pytest.mark.parametrize("name", FILES)
def test_a_kind_has_a_status_apart_and_a_structural_schema(name: str) -> None:
    spec = crd(name)["spec"]
    plural, kind = FILES[name]
    assert crd(name)["metadata"]["name"] == f"{plural}.{spec['group']}"
    assert (spec["names"]["plural"], spec["names"]["kind"]) == (plural, kind)
    (version,) = spec["versions"]
    assert version["subresources"] == {"status": {}}
    schema = version["schema"]["openAPIV3Schema"]
    assert [*untyped(schema, kind)] == []
    for column in version["additionalPrinterColumns"]:
        at = schema["properties"]
        part, _, field = column["jsonPath"].removeprefix(".").partition(".")
        assert field in at[part].get("properties", {"creationTimestamp": {}})


def untyped(schema: Any, path: str) -> list[str]:
    """Where neither a type nor openness is given: the API server asks for one everywhere."""
    faults = []
    if "type" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        faults.append(path)
    if {"properties", "additionalProperties"} <= schema.keys():
        faults.append(f"{path}: both")
    for name, each in schema.get("properties", {}).items():
        faults += untyped(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            faults += untyped(schema[key], f"{path}[]")
    return faults


def test_states_are_those_that_people_look_for() -> None:
    (version,) = crd("placement-groups-crd.yaml")["spec"]["versions"]
    columns = [each["name"] for each in version["additionalPrinterColumns"]]
    assert columns == ["State", "Pods", "Domains", "Message", "Age"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    states = "Degraded|Finished|Placed|Running|Unplaceable|Waiting"
    assert status["state"]["pattern"] == f"^({states})$"
    assert version["selectableFields"] == [{"jsonPath": ".status.state"}]
    request = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["podSets"][
        "items"
    ]["properties"]["request"]["properties"]
    assert [*request] == [
        *("required", "preferred", "unconstrained", "slices", "leaderGroup", "spreadOver"),
        *("maxPerHost", "apartOver", "maxSkew", "topologySpreading"),
        *("exclusive", "topology", "algorithm"),
    ]

"""What configs/kubernetes says, as an API server would enforce it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).resolve().parents[2] / "configs" / "kubernetes"


@cache
def schemas() -> dict[str, Any]:
    """Return the schema of each version of the CRD."""
    crd = yaml.safe_load((MANIFESTS / "crd.yaml").read_text())
    return {
        version["name"]: version["schema"]["openAPIV3Schema"]
        for version in crd["spec"]["versions"]
        if version["served"]
    }


@cache
def permitted(*components: str) -> dict[str, set[str]]:
    """Return the verbs that the daemon may use, by resource, with these *components*."""
    found: dict[str, set[str]] = {}
    for path in (MANIFESTS, *(MANIFESTS.parent / "kustomize" / each for each in components)):
        for each in yaml.safe_load_all((path / "rbac.yaml").read_text()):
            for rule in each["rules"] if each["kind"] in {"ClusterRole", "Role"} else ():
                for name in rule["resources"]:
                    found.setdefault(name, set()).update(rule["verbs"])
    return found


@cache
def denial_reasons() -> dict[str, str]:
    """Return the reason that each admission policy gives for a denial."""
    return {
        each["metadata"]["name"]: each["spec"]["validations"][0].get("reason", "Invalid")
        for path in ("kubernetes/node-restriction.yaml", "kustomize/dra/restriction.yaml")
        for each in yaml.safe_load_all((MANIFESTS.parent / path).read_text())
        if each["kind"] == "ValidatingAdmissionPolicy"
    }


_TYPES = {"object": dict, "array": list, "string": str, "integer": int}
Problems = tuple[list[str], list[tuple[str, str]]]  # unknown fields; paths of bad values, and why


def invalid(value: Any, schema: Mapping[str, Any], path: str) -> Problems:
    """Return what is wrong with *value* under a structural *schema*."""
    if schema.get("x-kubernetes-int-or-string"):
        pattern = schema["pattern"]
        right = type(value) is int or (
            isinstance(value, str) and re.fullmatch(pattern.strip("^$"), value)
        )
        why = f"Invalid value: \"{value}\": {path} in body should match '{pattern}'"
        return [], [] if right else [(path, why)]
    kind = _TYPES[schema["type"]]
    if not isinstance(value, kind) or isinstance(value, bool):
        return [], [(path, f"Invalid value: {value!r}: must be of type {schema['type']}")]
    parts: list[Problems] = []
    if isinstance(value, list):
        parts = [
            invalid(each, schema["items"], f"{path}[{index}]") for index, each in enumerate(value)
        ]
    elif isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        here = f"{path}." if path else ""
        lacking = [name for name in schema.get("required", []) if name not in value]
        unknown = [f".{here}{name}" for name in value if name not in known]
        parts = [(unknown, [(f"{here}{name}", "Required value") for name in lacking])]
        parts += [
            invalid(each, known[name], f"{here}{name}")
            for name, each in value.items()
            if name in known
        ]
    unknown_fields, bad = ([each for part in parts for each in part[i]] for i in (0, 1))
    return unknown_fields, bad  # type: ignore[return-value]  # one of each

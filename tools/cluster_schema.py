"""Generate the kinds of the cluster side, as CRDs, from its types and settings.

Writes them below configs/cluster and into the Helm chart. Takes the folder to write to, as a
stand-in for the repository's root; default: that root. Like the other kinds', the schemas leave
open what the controller explains better: unknown fields, numbers out of range.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import GroupObject
from tools.settings_schema import CHART, ROOT, Schema, spec_schema, structural

FOLDER = Path("configs/cluster")
OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_DESCRIPTIONS = {
    "template": "A pod template; what its containers request counts, and where it may run.",
    "spreadOver": "Labels, coarse to fine: KEY, KEY={VALUE: WEIGHT, …} or pack:KEY.",
}


def of_type(kind: Any) -> Schema:
    """Return the structural schema of a type."""
    (root,), parts = msgspec.json.schema_components([kind])
    schema = _structural(root, parts)
    schema.pop("description", None)
    return schema


def _structural(given: Schema, parts: dict[str, Schema]) -> Schema:
    if "$ref" in given:
        return _structural(parts[given["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in given:
        (one,) = [each for each in given["anyOf"] if each != {"type": "null"}]
        return _structural(one, parts) | {"nullable": True}
    if "enum" in given:
        # the API server refuses null for an enum, even if the enum lists it
        return {"type": "string", "pattern": f"^({'|'.join(given['enum'])})$"}
    schema: Schema = {key: given[key] for key in ("description", "type") if key in given}
    if "items" in given:
        schema["items"] = _structural(given["items"], parts)
    if "properties" in given:
        schema["properties"] = {
            name: _described(name, _structural(each, parts))
            for name, each in given["properties"].items()
        }
        schema |= OPEN
        if given.get("required"):
            schema["required"] = given["required"]
    elif given.get("type") == "object":
        schema |= {"additionalProperties": inner} if (inner := _values(given, parts)) else OPEN
    return schema


def _values(given: Schema, parts: dict[str, Schema]) -> Schema | None:
    inner = given.get("additionalProperties")
    return _structural(inner, parts) if isinstance(inner, dict) and inner else None


def _described(name: str, schema: Schema) -> Schema:
    return {"description": _DESCRIPTIONS[name], **schema} if name in _DESCRIPTIONS else schema


def generate(out: Path) -> None:
    """Write all of it below *out*."""
    # no part stands twice
    settings = json.loads(json.dumps(structural(spec_schema(ClusterSettings))))
    del settings["nullable"]
    _write(out, "settings-crd.yaml", {"spec": settings})
    whole = of_type(GroupObject)["properties"]
    _write(out, "placement-groups-crd.yaml", {"spec": whole["spec"], "status": whole["status"]})


def _write(out: Path, name: str, properties: Schema) -> None:
    """Write a kind with the schemas of *properties* between the marks in its file."""
    text = (ROOT / FOLDER / name).read_text()
    block = yaml.safe_dump(properties, sort_keys=False, width=100, allow_unicode=True)
    indented = "".join(f"{' ' * 12}{line}\n" for line in block.splitlines())
    begin, end = (
        f"( *# {word} of what tools/cluster_schema.py writes\n)" for word in ("begin", "end")
    )
    made, count = re.subn(
        f"{begin}.*?{end}", lambda m: m[1] + indented + m[2], text, flags=re.DOTALL
    )
    assert count == 1
    for path in (out / FOLDER / name, out / CHART / "crds" / f"cluster-{name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

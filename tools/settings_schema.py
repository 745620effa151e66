"""Generate what describes the settings to Kubernetes from `nri_policy/settings/schema.py`.

Writes the schema of `spec` into the CRD, the schema of the Helm chart's values, and the chart's
copies of files that Helm wants below it. Takes the folder to write to, as a stand-in for the
repository's root; default: that root.

The chart's schema is strict: who has the chart can read the message. The API server's leaves open
what the daemon explains better, or takes in several forms: unknown fields, quantities, and `off`,
which YAML 1.1 makes false.
"""

from __future__ import annotations

import json
import re
import sys
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from nri_policy.cluster.objects import settings as cluster
from nri_policy.foundation.units import parse_duration
from nri_policy.settings import LEVEL_NAMES, Level, Section, Settings, rdt, readers
from nri_policy.settings.document import of_sections

ROOT = Path(__file__).resolve().parent.parent
CRD = Path("configs/kubernetes/settings-crd.yaml")
CHART = Path("configs/helm/nri-policy")
COPIED = {
    Path("configs/kubernetes/crd.yaml"): "crds/crd.yaml",
    Path("configs/kustomize/containerd-1.7/enable-nri.sh"): "enable-nri.sh",
}

Schema = dict[str, Any]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_QUANTITY = {"type": ["string", "number"]}
_CPUS = "a list of CPUs: cpuset:0-3,8 or exclude-cpuset:LIST"
# The schema of each reader's input; readers of choices follow from the field's type.
_TAKEN: dict[Any, Schema] = {
    readers.flag: {"type": "boolean"},
    readers.available_cpus: {**_TEXT, "description": _CPUS},
    readers.reserved_cpus: {
        **_QUANTITY,
        "description": f"an amount, such as 750m or 2, or {_CPUS}",
    },
    readers.memory: {**_QUANTITY, "description": "an amount, such as 2Gi"},
    readers.period: {**_TEXT, "description": "at least 1s"},
    readers.endpoint: {**_TEXT, "description": "HOST:PORT, such as :8891; empty is off"},
    readers.globs: {"type": "array", "items": _TEXT},
    readers.names: {"type": "array", "items": _TEXT},
    readers.loggers: {"type": "array", "items": _TEXT},
    readers.text: _TEXT,
    readers.integer: _WHOLE,
    readers.natural: {**_WHOLE, "minimum": 0},
    readers.movers: {**_WHOLE, "minimum": 0, "maximum": readers.MAX_MOVERS},
    readers.integer_text: {"type": ["integer", "string"]},
    readers.rate: {**_QUANTITY, "description": "an amount a second, such as 50M or 100"},
    readers.nanoseconds: {
        "type": ["integer", "string"],
        "description": "nanoseconds, or a duration, such as 10ms",
    },
    readers.frequency: {
        "type": ["integer", "string"],
        "description": "a frequency, such as 3.2GHz or 2900000 (kHz), or min, base or turbo",
    },
    readers.class_name: {**_TEXT, "pattern": readers.CLASS_NAME.pattern.join("^$")},
    readers.class_by_namespace: {"type": "object", "additionalProperties": _TEXT},
    readers.class_by_qos: {"type": "object", "additionalProperties": _TEXT},
    readers.klog: {"type": "object"},
    rdt.share: {**_TEXT, "description": "as in 50%, 0-5 or 0xff0"},
    rdt.bandwidth: {
        "type": "object",
        "additionalProperties": {"type": "array", "items": _TEXT},
    },
    readers.memory_kinds: {
        "description": "by memory node",
        "type": "object",
        "additionalProperties": {"type": "string", "enum": [*map(str, readers.NODE_KINDS)]},
    },
    cluster.read_text: _TEXT,
    cluster.read_gate: _TEXT,
    parse_duration: {**_TEXT, "description": "as in 30s or 10m"},
    cluster.read_levels: {
        "description": "node labels, coarse to fine; kubernetes.io/hostname only last",
        "type": "array",
        "items": _TEXT,
    },
    cluster.read_zone_types: {
        "description": "types of NodeResourceTopology zones, coarse to fine, such as socket, Node",
        "type": "array",
        "items": _TEXT,
    },
    cluster.read_labels: {"type": "object", "additionalProperties": _TEXT},
    cluster.read_weights: {"type": "object", "additionalProperties": {"type": "integer"}},
    cluster.read_tolerations: {
        "description": "as pods have them; they count for every pod",
        "type": "array",
        "items": {"type": "object"},
    },
}


def spec_schema(section: type[Section] = Settings) -> Schema:
    """Return the JSON schema of a section: it refuses what the daemon would."""
    properties: dict[str, Schema] = {}
    required = []
    for field in fields(section):
        inner = _of_field(field)
        if inner is None:
            continue
        if field.encode_name in section.LATER:
            inner = {"description": "Not supported yet: it has no effect.", **inner}
        properties[field.encode_name] = inner
        if field.default is NODEFAULT and field.default_factory is NODEFAULT:
            required.append(field.encode_name)
    schema: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(sorted(properties.items())),
    }
    return {**schema, "required": required} if required else schema


def _of_field(field: FieldInfo) -> Schema | None:
    """Return the schema of a field; None if the field is not in the document."""
    if get_origin(field.type) is list:
        return {"type": "array", "items": spec_schema(*get_args(field.type))}
    if get_origin(field.type) is not Annotated:
        return _of_sections(field.type) if of_sections(field.type) else None
    kind, reader = get_args(field.type)
    if get_origin(kind) is UnionType:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        names = [*LEVEL_NAMES] if kind is Level else [each.value for each in kind]
        return {"enum": [*names, False] if "off" in names else names}
    if get_origin(kind) is Literal:
        return {"enum": [*get_args(kind)]}
    if get_origin(kind) is tuple and issubclass(get_args(kind)[0], StrEnum):
        return {"type": "array", "items": {"enum": [each.value for each in get_args(kind)[0]]}}
    return _TAKEN.get(reader) or {"enum": [*reader.words]}


def _of_sections(form: Any) -> Schema:
    """Return the schema of a section, or of several: a list of them, or a map by name."""
    if isinstance(form, type):
        return spec_schema(form)
    if get_origin(form) is tuple:
        return {"type": "array", "items": _of_sections(get_args(form)[0])}
    return {"type": "object", "additionalProperties": _of_sections(get_args(form)[1])}


def structural(schema: Schema) -> Schema:
    """Return a schema for the API server, which cannot state fields of several types."""
    opened: Schema = {"x-kubernetes-preserve-unknown-fields": True}
    described = {key: schema[key] for key in ("description",) if key in schema}
    if "enum" in schema and False not in schema["enum"]:
        # the API server refuses null for an enum, even if the enum lists it
        names = "|".join(schema["enum"])
        return {**described, "type": "string", "nullable": True, "pattern": f"^({names})$"}
    if not isinstance(schema.get("type"), str):
        return {**described, **opened}
    kept: Schema = {**described, "type": schema["type"], "nullable": True}
    if "items" in schema:
        kept["items"] = structural(schema["items"])
        kept["items"].pop("nullable", None)
    if "properties" in schema:
        inner = {name: structural(each) for name, each in schema["properties"].items()}
        kept |= {"properties": inner, **opened}
    elif schema["type"] == "object":
        kept |= opened
    if "required" in schema:
        kept["required"] = schema["required"]
    return kept


PEER_VALUES = (
    *("allowPCT", "extraEnv", "initContainerImage", "nri", "openshift", "plugin-test"),
    *("hostPort", "podPriorityClassNodeCritical", "ports"),
)


def values_schema() -> Schema:
    """Return the schema of the chart's values."""
    text, flag = {"type": "string"}, {"type": "boolean"}
    table, switch = {"type": "object"}, _object(enabled=flag)
    table_or_none = {"type": ["object", "array"], "maxItems": 0}
    percentage = {"type": ["string", "integer"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object(
            affinity=table_or_none,
            alerts=switch,
            cluster=_object(enabled=flag, bind=flag, groups=flag, kueue=flag),
            clusterSettings=flag,
            config=spec_schema(),
            configGroupLabel=text,
            dra=switch,
            enableNRI=flag,
            explanations=switch,
            image=_object(pullPolicy=text, repository=text, tag=text, name={}),
            imagePullSecrets={"type": "array", "items": table},
            kubeletDir={"type": "string", "pattern": r"^(/[A-Za-z0-9._-]+)+$"},
            maxUnavailable=percentage,
            metricsFrom={"type": "array", "items": table},
            nodeRestriction=switch,
            nodeSelector=table_or_none,
            podAnnotations=table,
            podMonitor=_object(enabled=flag, interval=text),
            priorityClassName=text,
            readiness=switch,
            resources=table,
            seLinuxType=text,
            tolerations={"type": "array", "items": table},
            tuner=_object(enabled=flag, singleIdleStates=flag, resources=table),
            # what Helm itself puts there
            **{"global": table},
            # of nri-plugins' chart: a template says what they are here
            **{key: {} for key in PEER_VALUES},
        ),
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def generate(out: Path) -> None:
    """Write all of it below *out*."""
    text = (ROOT / CRD).read_text()
    spec = json.loads(json.dumps(structural(spec_schema())))  # without a part that stands twice
    del spec["nullable"]
    block = yaml.safe_dump({"spec": spec}, sort_keys=False, width=100)
    indented = "".join(f"{' ' * 12}{line}\n" for line in block.splitlines())
    begin, end = (
        rf"( *# {word} of what tools/settings_schema.py writes\n)" for word in ("begin", "end")
    )
    crd, count = re.subn(
        f"{begin}.*?{end}", lambda m: m[1] + indented + m[2], text, flags=re.DOTALL
    )
    assert count == 1
    _write(out / CRD, crd)
    _write(out / CHART / "values.schema.json", json.dumps(values_schema(), indent=2) + "\n")
    _write(out / CHART / "crds" / CRD.name, crd)
    for source, copy in COPIED.items():
        _write(out / CHART / copy, (ROOT / source).read_text())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

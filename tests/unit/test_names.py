"""Names have one meaning: a public class is defined once in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import nri_policy

ROOT = Path(nri_policy.__file__).parent

# Kubernetes' own names. The node's side and the cluster's know nothing of each other, and read of
# the same object what each needs.
OF_BOTH_SIDES = {
    "Container": {"cluster/objects/pod.py", "workload/pod.py"},
    "Pod": {"cluster/objects/pod.py", "workload/pod.py"},
    "PodClaim": {"cluster/objects/scheduler_constraints.py", "manifests/pod.py"},
    "PodSpec": {"cluster/objects/pod.py", "manifests/pod.py"},
    "Zone": {"cluster/zones/zone.py", "report/resource_topology.py"},
}
# Each side has one engine, and is built around it.
ENGINES = {"Engine": {"cluster/engine/engine.py", "engine/engine.py"}}


def test_the_name_of_a_public_class_has_one_meaning() -> None:
    found = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "proto"):  # generated
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert twice == OF_BOTH_SIDES | ENGINES

"""Imports run one way (design.md): a folder knows only those below it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nri_policy

ROOT = Path(nri_policy.__file__).parent

CLUSTER_KERNELS = (
    "_counts",
    "_domains",
    "_numa_fit",
    "_numa_node",
    "_numa_request",
    "_numa_score",
    "_packing",
    "_spreading",
)

# Each row knows the rows after it, and itself only where it is one name. Cross-imports within a row
# are listed: settings name the kinds of memory that hardware tells apart.
LAYERS = (
    ("cli",),
    ("simulation",),
    ("cluster",),
    ("doctor",),
    ("process",),
    ("daemon",),
    ("status", "what_if"),
    ("reload",),
    (
        "plugin",
        "nri",
        "kubelet",
        "store",
        "nrt",
        "control",
        "observability",
        "audit",
        "settings_source",
        "singleton",
    ),
    ("picture",),
    ("report",),
    ("node",),
    ("engine", "kube"),
    ("classes",),
    ("workload", "pools"),
    ("hardware", "settings"),
    ("refusal",),
    ("backoff", "clock", "cpuset", "units", "glob", "yamltext", "proto"),
    ("wording",),
    ("_affinity", "_cpu_domains", "_cpuset", "_picker", "_pools", "_table", *CLUSTER_KERNELS),
)
ALLOWED = {
    ("settings", "hardware"),
    ("observability", "nri"),
    ("plugin", "nri"),
    ("audit", "nri"),
    ("audit", "plugin"),
    ("workload", "pools"),
}


FACED = ("node", "report", "classes", "settings")

CLUSTER_MAY_IMPORT = {
    *("backoff", "units", "glob", "wording", "yamltext"),
    *("kube", "nrt"),  # the API, and what reads NodeResourceTopology objects
    *("settings", "settings_source"),  # what reads documents of settings, and follows their file
    "cluster",
    *CLUSTER_KERNELS,
}


def layer(name: str) -> int:
    return next(i for i, row in enumerate(LAYERS) if name in row)


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("nri_policy.")}


def test_imports_run_one_way() -> None:
    wrong = []
    modules = [
        path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__"
    ]
    for path in modules:
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imports(path):
            if other == own or (own, other) in ALLOWED:
                continue
            if layer(other) <= layer(own):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert len(modules) > 50
    assert not wrong


def test_the_cluster_side_and_the_nodes_know_nothing_of_each_other() -> None:
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own == "cluster":
            assert imports(path) <= CLUSTER_MAY_IMPORT, path
        elif own != "cli":
            assert "cluster" not in imports(path), path


def test_who_reads_the_node_reads_a_view() -> None:
    """The engine's state is for the engine and for `node`, which makes views of it."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in {"engine", "node", "cluster"}:
            continue
        text = path.read_text()
        assert "nri_policy.engine.state" not in text, path
        assert not re.search(r"engine\.(state|tables)\b", text), path


def test_what_a_face_hides_is_imported_by_nobody_else() -> None:
    """Rooms whose `__init__` names all that others may use."""
    inside = re.compile(rf"from nri_policy\.({'|'.join(FACED)})\.\w")
    for path in ROOT.rglob("*.py"):
        for room in inside.findall(path.read_text()):
            assert path.relative_to(ROOT).parts[0] == room, path


def test_the_engine_knows_no_format() -> None:
    formats = re.compile(r"import (json|yaml|click|rich)\b|\b(msgspec\.json|yamltext)\b")
    for folder in ("engine", "node", "pools", "classes"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not formats.search(path.read_text()), path


def test_the_engine_and_what_is_below_do_no_io() -> None:
    """No clock, socket, thread or event loop: what the engine knows it is told."""
    forbidden = {
        "asyncio",
        "time",
        "socket",
        "threading",
        "random",
        "logging",
        "subprocess",
        "grpc",
    }
    for folder in ("engine", "classes", "pools", "workload"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found = {
                alias.name.split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.Import)
                for alias in node.names
            } | {
                (node.module or "").split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
            }
            assert not found & forbidden, path

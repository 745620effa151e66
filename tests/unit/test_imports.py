"""Imports run one way (design.md): a folder knows only those below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nri_policy

ROOT = Path(nri_policy.__file__).parent

# Each row knows the rows after it, and itself only where it is one name. Cross-imports within a row
# are listed: settings name the kinds of memory that hardware tells apart.
LAYERS = (
    ("completion",),
    ("cli",),
    ("simulation",),
    ("cluster",),
    ("doctor",),
    ("daemon",),
    (
        "plugin",
        "nri",
        "dra",
        "kubelet",
        "store",
        "nrt",
        "control",
        "observability",
        "audit",
        "settings_sources",
    ),
    ("delivery", "picture"),
    ("report",),
    ("node",),
    ("engine",),
    ("classes", "tuning"),
    ("workload", "pools"),
    ("hardware", "settings"),
    ("manifests", "kube", "systemd"),
    ("foundation", "proto"),
    ("native",),
)

# The packages of the cluster side, in the same way; modules outside of them may import all.
CLUSTER_LAYERS = (
    ("service", "simulation", "report"),
    ("planning",),
    ("offline",),
    ("groups",),
    ("numa",),
    ("engine",),
    ("view",),
    ("cluster_files", "snapshot"),
    ("workloads",),
    ("requests", "zones"),
    ("objects",),
)

# The rooms of its engine; the modules beside them know both.
CLUSTER_ENGINE_LAYERS = (
    ("search",),
    ("state",),
)

# The rooms of the engine, and the modules that are in none, in the same way.
ENGINE_LAYERS = (
    ("engine",),
    ("lifecycle",),
    ("restart",),
    ("pods",),
    ("placement",),
    ("choice",),
    ("updates",),
    ("state",),
    ("event",),
    ("grant",),
    ("explanation",),
)
ALLOWED = {
    ("settings", "hardware"),
    ("observability", "nri"),
    ("plugin", "nri"),
    ("audit", "nri"),
    ("audit", "plugin"),
    ("workload", "pools"),
}


FACED = {"node", "report", "classes", "settings"}  # rooms whose face has names

CLUSTER_MAY_IMPORT = {
    *("foundation", "native", "manifests"),
    *("kube", "nrt"),  # the API, and what reads NodeResourceTopology objects
    *("settings", "settings_sources"),  # what reads documents of settings, and follows their file
    "cluster",
}


def layer(name: str) -> int:
    return next(i for i, row in enumerate(LAYERS) if name in row)


def room(module: str) -> str:
    return module.partition(".")[0]


def room_of(path: Path) -> str:
    return room(".".join(path.relative_to(ROOT).parts).removesuffix(".py"))


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {room(name.partition(".")[2]) for name in names if name.startswith("nri_policy.")}


def test_imports_run_one_way() -> None:
    wrong = []
    modules = [
        path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__"
    ]
    for path in modules:
        own = room_of(path)
        for other in imports(path):
            if other == own or (own, other) in ALLOWED:
                continue
            if layer(other) <= layer(own):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert len(modules) > 50
    assert not wrong


def test_the_cluster_side_and_the_nodes_know_nothing_of_each_other() -> None:
    for path in ROOT.rglob("*.py"):
        own = room_of(path)
        if own == "cluster":
            assert imports(path) <= CLUSTER_MAY_IMPORT, path
        elif own != "cli":
            assert "cluster" not in imports(path), path


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("cluster", CLUSTER_LAYERS),
        ("cluster.engine", CLUSTER_ENGINE_LAYERS),
        ("engine", ENGINE_LAYERS),
    ],
)
def test_the_rooms_of_a_package_know_those_below(
    package: str, layers: tuple[tuple[str, ...], ...]
) -> None:
    rooms = {name: number for number, row in enumerate(layers) for name in row}
    found = set()
    folder = ROOT.joinpath(*package.split("."))
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        found.add(own)
        if own not in rooms:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            module = (isinstance(node, ast.ImportFrom) and node.module) or ""
            inside = module.removeprefix(f"nri_policy.{package}.")
            if inside != module:
                other = room(inside)
                below = rooms.get(other, -1) > rooms[own]
                assert other == own or below, f"{path} imports {module}"
    assert rooms.keys() <= found
    if package == "engine":
        assert found - rooms.keys() == {"__init__"}, "each module of the engine has a row"


@pytest.mark.parametrize("package", ["cluster", "cluster/engine", "engine"])
def test_each_room_says_what_it_owns_and_what_it_must_not_know(package: str) -> None:
    for init in (ROOT / package).glob("*/__init__.py"):
        text = " ".join((ast.get_docstring(ast.parse(init.read_text())) or "").split())
        assert "Owns " in text, init
        assert "must not " in text, init


def test_who_reads_the_node_reads_a_view() -> None:
    """The engine's state is for the engine and for `node`, which makes views of it."""
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] in {"engine", "node"} or "cluster" in parts:
            continue
        text = path.read_text()
        assert "nri_policy.engine.state.state" not in text, path
        assert not re.search(r"(?<!nri_policy\.)engine\.(state|tables)\b", text), path


def imported_modules(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each room and module in it that *path* imports; "" for the room itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nri_policy.")):
            continue
        module = (node.module or "").removeprefix("nri_policy.")
        inside = module.removeprefix(room(module)).lstrip(".")
        folder = ROOT.joinpath(*module.split("."))
        for alias in node.names:
            named = not (inside or module in FACED) and (folder / f"{alias.name}.py").exists()
            yield room(module), alias.name if named else inside


def test_others_import_from_a_room_what_its_face_offers() -> None:
    """Its `__init__` has the names, or in its text a table of the modules, that others may use.

    Names where importing them all costs a command little, else modules: each loads what it needs.
    """
    offered = {}
    for init in ROOT.rglob("__init__.py"):
        own = room_of(init.parent)
        if own in {"", "proto", "native", "cli", "cluster"}:
            continue
        if init.parent == ROOT.joinpath(*own.split(".")):
            text = ast.get_docstring(ast.parse(init.read_text())) or ""
            offered[own] = set(re.findall(r"(?m)^\| `([\w.]+)` \|", text)) or {""}
    used: dict[str, set[str]] = {own: set() for own in offered}
    for path in ROOT.rglob("*.py"):
        for other, module in imported_modules(path):
            if other in offered and other != room_of(path):
                used[other].add(module)
                assert module in offered[other], f"{path} imports {other}.{module}"
    assert {own for own, modules in offered.items() if modules == {""}} == FACED
    assert used == offered, "a face offers what nobody else uses"


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

"""Scenes for tests: of an engine, and of containers that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from msgspec.structs import replace
from rich.console import Console, RenderableType

from nri_policy.engine.engine import Engine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.picture.scene import Scene, scene
from nri_policy.report import (
    ContainerReport,
    Containers,
    container_report,
    machine_report,
    pool_reports,
)
from nri_policy.report.codec import convert
from nri_policy.workload.pod import Container, Pod
from tests.support import nodes


def scene_of(engine: Engine, before: Scene | None = None) -> Scene:
    """Return the scene of what an engine holds."""
    return made_up(engine, held_by(engine), before)


def held_by(engine: Engine) -> Containers:
    """Return what the containers of an engine hold."""
    return {
        each.placed.container.full_name: container_report(each, "running")
        for each in view_of(engine).holdings()
    }


def made_up(
    engine: Engine, containers: Mapping[str, ContainerReport], before: Scene | None = None
) -> Scene:
    """Return the scene of other containers on an engine's machine."""
    layout = engine.layout
    pools = pool_reports(layout.tree, layout.capacity)
    return scene(machine_report(layout.machine), pools, containers, before)


def holding(**fields: Any) -> ContainerReport:
    """Return what a container holds: exclusive CPU 1, or as *fields* of its JSON form say."""
    shown = {
        "qos": "Guaranteed",
        "sort": "normal",
        "pool": "root",
        "cpus": "1",
        "exclusive": "1",
        "shared_milli": 0,
        "isolated": "",
        "mems": "0",
        "shares": 2,
        "state": "running",
        "error": None,
    }
    return convert({**shown, **fields}, ContainerReport)


def container(name: str, request: int, limit: int | None, namespace: str, qos: QoS) -> Container:
    """Return a container of a pod with a name that does not change from run to run."""
    pod = Pod(id=name, uid=name, name=name, namespace=namespace, qos=qos, labels={}, annotations={})
    made = nodes.container(request, limit, qos=qos, pod=pod, name="main")
    return replace(made, id=name)


def printed(drawing: RenderableType, *, colour: str | None = None, width: int = 100) -> str:
    """Return what rich prints, without blanks at the ends of lines."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        color_system=colour,  # type: ignore[arg-type]  # one of rich's names
        force_terminal=colour is not None,
        highlight=False,
        _environ={},
    )
    console.print(drawing)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

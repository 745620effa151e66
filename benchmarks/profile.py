"""Where the time of a decision goes, by function."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import nri_policy
from benchmarks.decisions import TYPICAL, crowded
from benchmarks.table import Section
from nri_policy.engine.event import Created, Stopped
from tests.support import busy_node

_ROUNDS = 500
_SHOWN = 16
_ROOT = Path(nri_policy.__file__).parent


def profiled() -> Section:
    """Profile creations and releases at the typical size."""
    engine, milli = crowded(*TYPICAL), busy_node.share(*TYPICAL)
    profile = cProfile.Profile()
    for at in range(_ROUNDS):
        container = busy_node.newcomer("plain", milli, at)
        profile.enable()
        engine.handle(Created(container=container))
        engine.handle(Stopped(container_id=container.id))
        profile.disable()
    # of each function, (file, line, name): primitive calls, calls, own and whole time, callers
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # not in the stubs
    total = sum(own for _, _, own, _, _ in found.values())
    most = sorted(found.items(), key=lambda item: -item[1][2])[:_SHOWN]
    return Section(
        title="Profile",
        text=f"Creations and releases at {TYPICAL[0]} CPUs and {TYPICAL[1]} containers, the"
        " functions that take most of the time themselves. A profiler makes Python calls look"
        " dearer than they are.",
        head=("function", "calls a decision", "own time"),
        rows=[
            (_name(*where), f"{calls / (2 * _ROUNDS):.1f}", f"{own / total:.1%}")
            for where, (_, calls, own, _, _) in most
        ],
    )


def _name(file: str, _line: int, name: str) -> str:
    path = Path(file)
    if path.is_relative_to(_ROOT):
        return f"`{path.relative_to(_ROOT).with_suffix('')}: {name}`"
    return f"`{name.strip('<>')}`"


def main() -> None:
    print(profiled().plain())

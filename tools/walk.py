"""Counts how often a reader who follows a container's creation through the code has to go back.

    .venv/bin/python -m tools.walk

It calls `create()` of the engine on a small synthetic machine, and prints the files in the order in
which they are reached. A reader reads each function once: where it is called first. A *return* is
such a first reading in a file that the walk was in before and has left: the call comes from
another file. What goes on in the caller after a call is no return. Functions of kernels are not
seen.

When this was first counted, a plain container had 26 returns, an annotated one 29, and the first
one of a pod's room 33.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import nri_policy
from nri_policy.engine.event import Created
from nri_policy.engine.lifecycle.lifecycle import create
from nri_policy.workload.pod import Container
from tests.support import nodes, rooms

ROOT = str(Path(nri_policy.__file__).parent) + "/"
ANNOTATIONS = {
    "affinity.resource-policy.nri.io": "web: [log]",
    "hide-hyperthreads.resource-policy.nri.io": "true",
    "memory-type.resource-policy.nri.io": "dram",
    "noderesource.dev/resources": '{"containers": {"web": {"requests": {"cpu": 2}}}}',
    "placement.nri/zone": "node-1",
}


class Step(NamedTuple):
    """A function that is read for the first time."""

    file: str  # below nri_policy/
    name: str
    is_return: bool


def containers() -> dict[str, Container]:
    """Return the containers whose creations are followed."""
    return {
        "plain": nodes.container(2000),
        "annotated": nodes.container(2000, name="web", annotations=ANNOTATIONS),
        "room": rooms.tenant(rooms.pod(4000), "web", 2000),
    }


def follow(container: Container) -> list[Step]:
    """Return the steps of the creation of *container* beside one that shares CPUs."""
    engine = nodes.engine()
    engine.handle(Created(container=nodes.container(500, 1000, name="log")))
    return steps_of(lambda: create(engine.state, Created(container=container)))


def steps_of(call: Callable[[], object]) -> list[Step]:
    """Return the functions that *call* reads, in order."""
    steps: list[Step] = []
    files, read = set[str](), set[tuple[str, str]]()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        file, name = place_of(frame)
        if event != "call" or not file or (file, name) in read:
            return
        caller = frame.f_back
        while caller is not None and not place_of(caller)[0]:  # such as functools
            caller = caller.f_back
        stays = caller is not None and place_of(caller)[0] == file
        steps.append(Step(file, name, is_return=file in files and not stays))
        files.add(file)
        read.add((file, name))

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return steps


def place_of(frame: FrameType) -> tuple[str, str]:
    """Return the file and function of *frame*; the file is empty outside of this project."""
    code = frame.f_code
    file = code.co_filename.removeprefix(ROOT) if code.co_filename.startswith(ROOT) else ""
    return file, code.co_qualname.partition(".<locals>")[0]


def main() -> None:
    """Print the walks."""
    for kind, container in containers().items():
        steps, last = follow(container), ""
        files = {each.file for each in steps}
        returns = sum(each.is_return for each in steps)
        print(f"{kind}: {len(files)} files, {len(steps)} functions, {returns} returns")
        for step in steps:
            if step.file != last or step.is_return:
                print(f"  {'<-' if step.is_return else '  '} {step.file}: {step.name}")
            last = step.file


if __name__ == "__main__":
    main()

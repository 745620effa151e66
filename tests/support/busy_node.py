"""Nodes of six sizes with many containers, and newcomers to them."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from tests.support import nodes

MACHINES = {
    16: nodes.SMALL,
    64: "package:2 numa:2 l3:2 core:4 pu:2",
    256: "package:2 numa:4 l3:2 core:8 pu:2",
    1024: "package:4 numa:4 l3:4 core:8 pu:2",
    4096: "package:8 numa:4 l3:4 core:16 pu:2",
    8192: "package:16 numa:4 l3:4 core:16 pu:2",
}
COUNTS = (10, 100, 500)
MEMORY = 16 << 20  # bytes of a container
AFFINITY = """\
main:
- scope: {operator: AlwaysTrue}
  match: {key: name, operator: Equals, values: [main]}
  weight: 10
"""


def share(cpus: int, running: int) -> int:
    """Return the milli-CPU of each of *running* containers, that all find room on half the CPUs."""
    return min(500, 500 * cpus // running)


def container(
    milli: int, *, memory: int = MEMORY, annotations: dict[str, str] | None = None
) -> Container:
    made = nodes.container(milli, annotations=annotations, name="main")
    return replace(made, resources=replace(made.resources, memory_limit=memory))


def running(cpus: int, count: int) -> list[Container]:
    """Return *count* containers, a quarter of them with a CPU of their own while these last."""
    exclusive = min(count // 4, cpus // 4)
    part = share(cpus, count)
    every = max(1, count // max(1, exclusive))
    return [
        container(1000 if at % every == 0 and at // every < exclusive else part)
        for at in range(count)
    ]


def engine(cpus: int, present: list[Container]) -> Engine:
    made = Engine(nodes.machine(MACHINES[cpus]), nodes.settings())
    for each in present:
        made.handle(Created(container=each))
    return made


def newcomer(kind: str, milli: int, at: int) -> Container:
    """Return the *at*-th newcomer of a *kind*; every other asks for a CPU of its own."""
    amount = 1000 if at % 2 else milli
    match kind:
        case "affinity":
            annotations = {"resource-policy.nri.io/affinity": AFFINITY}
            return container(amount, annotations=annotations)
        case "hints":
            hint = Hint(
                kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet([at % 4])
            )
            return replace(container(amount), hints=(hint,))
        case "memory":  # more than is left on any one node
            return container(amount, memory=6 << 30)
        case _:
            return container(amount)

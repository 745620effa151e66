"""Trial: what would be if settings changed, or pods came; on a copy that nobody else sees.

Owns the order in which a pod's containers come, as the kubelet has it: init containers one after
the other, each gone before the next unless it is a sidecar; one that is refused ends its pod, any
other leaves the rest of its pod to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain, count, islice

from msgspec import Struct

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine import view
from nri_policy.engine.alignment import misfit
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Reconfigured, Stopped
from nri_policy.engine.explanation import Explanation, Outcome, render
from nri_policy.engine.placement import RefusalError
from nri_policy.engine.state import Placed, State
from nri_policy.pools.capacity import CapacityError
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.pod import Container
from nri_policy.workload.remarks import remarks

Cpuset = tuple[CPUSet, CPUSet]  # the CPUs and memory nodes of a container


class Start(Struct, frozen=True, kw_only=True):
    """One container of a pod that might come."""

    container: Container
    init: bool  # without it, the rest of the pod does not come
    to_end: bool  # it is gone before the next one comes


class Wanted(Struct, frozen=True, kw_only=True):
    """A pod that might come, and how many of it, or at most so many."""

    namespace: str
    name: str
    replicas: int
    starts: Callable[[str], tuple[Start, ...]]  # the containers of the pod of that name, in order


class Trial:
    """Settings, then pods one after the other, and what becomes of them and of everybody else."""

    def __init__(
        self, engine: Engine, *, most: bool = False, found: Mapping[str, Cpuset] | None = None
    ) -> None:
        """Try on a copy of *engine*; *most*: as many as fit are wanted, there is no number.

        *found* is where containers run now, by id, of which the policy leaves something alone.
        """
        self._engine = engine.fork()
        self._most = most
        self._cpusets = _told(engine.state, found or {})
        self._before = _holdings(engine.state, self._cpusets)
        self._settings: dict[str, object] | None = None
        self._pods: list[dict[str, object]] = []
        self._containers: dict[str, dict[str, object]] = {}
        self._warnings: list[str] = []

    def reconfigure(self, event: Reconfigured) -> bool:
        """Let settings come into force; return whether they would be taken."""
        reason = ""
        try:
            self._warnings += self._engine.handle(event).warnings
        except (RefusalError, CapacityError) as error:
            reason = str(error)
        layout = self._engine.layout
        self._settings = {
            "accepted": not reason,
            "reason": reason,
            "pools": view.topology(layout.tree, layout.capacity),
        }
        return not reason

    def run(self, wanted: Wanted) -> Iterator[None]:
        """Let the replicas of *wanted* come, until one does not fit.

        Yields after each container, for whoever must not be kept waiting.
        """
        fit, misfits = 0, list[dict[str, object]]()
        for name in islice(self._names(wanted), wanted.replicas):
            starts = wanted.starts(name)
            if not fit:
                self._warnings += _odd(starts)  # it is the same of each replica
            if not (yield from self._start(starts)):
                break
            fit += 1
            reasons = [self._containers[s.container.full_name]["misfit"] for s in starts]
            if why := next(filter(None, reasons), None):
                misfits.append({"pod": name, "replica": fit, "why": why})
        self._pods.append(
            {
                "pod": f"{wanted.namespace}/{wanted.name}",
                "replicas": None if self._most else wanted.replicas,
                "fit": fit,
                "more": fit == wanted.replicas,  # none was refused: even more might fit
                "misfits": misfits,
            }
        )

    def document(self) -> dict[str, object]:
        """Return what `what-if -o json` prints."""
        state = self._engine.state
        for name, shown in self._containers.items():
            if container_id := state.named(name):  # others that came later may have changed it
                shown.update(view.container(state, state.placed[container_id]))
        after = _holdings(state, _told(state, self._cpusets))
        return {
            # the first has to fit even where there is no number
            "fits": all(pod["fit"] != 0 if self._most else pod["more"] for pod in self._pods)
            and (self._settings is None or bool(self._settings["accepted"])),
            "settings": self._settings,
            "pods": self._pods,
            "containers": self._containers,
            "changes": {
                name: {"before": before, "after": after[name]}
                for name, before in self._before.items()
                if before != after[name]
            },
            "warnings": [*dict.fromkeys(self._warnings)],
        }

    def _names(self, wanted: Wanted) -> Iterator[str]:
        """Yield names for replicas that no pod has: that of a pod alone, else with a number."""
        state = self._engine.state
        pods = (placed.container.pod for placed in state.placed.values())
        taken = {pod.name for pod in pods if pod.namespace == wanted.namespace}
        taken |= {
            name.split("/")[1]
            for name in self._containers
            if name.startswith(f"{wanted.namespace}/")
        }
        plain = [wanted.name] if wanted.replicas == 1 else []
        numbered = (f"{wanted.name}-{number}" for number in count(1))
        return (name for name in chain(plain, numbered) if name not in taken)

    def _start(self, starts: tuple[Start, ...]) -> Generator[None, None, bool]:
        """Let one pod come; return whether all of its containers got a place."""
        whole = True
        for start in starts:
            placed = self._create(start.container)
            if placed and start.to_end:
                self._containers[start.container.full_name]["state"] = "removed"
                self._engine.handle(Stopped(container_id=start.container.id))
            yield
            whole = whole and placed
            if start.init and not placed:
                break
        return whole

    def _create(self, container: Container) -> bool:
        """Let one container come; return whether it got a place."""
        try:
            decision = self._engine.handle(Created(container=container))
        except (RefusalError, AnnotationError) as error:
            self._containers[container.full_name] = {
                **view.refused(str(error)),
                "outcome": Outcome.REFUSED.value,
                "summary": str(error),
                "decided_by": None,
                "misfit": None,
            }
            return False
        placed = self._engine.state.placed[container.id]
        self._containers[container.full_name] = self._shown(placed, decision.explanation)
        self._warnings += [f"{container.full_name}: {each}" for each in decision.warnings]
        return True

    def _shown(self, placed: Placed, explanation: Explanation | None) -> dict[str, object]:
        assert explanation is not None, "what is placed is explained"
        shown = render(explanation)
        return {
            **view.container(self._engine.state, placed),
            "state": "created",
            "error": None,
            "outcome": shown["outcome"],
            "summary": shown["summary"],
            "decided_by": shown["decided_by"],
            "misfit": misfit(self._engine.state, placed),
        }


def _odd(starts: tuple[Start, ...]) -> Iterator[str]:
    """Yield what of the annotations of a pod's containers does nothing."""
    containers = [start.container for start in starts]
    names = [each.name for each in containers]
    for each in containers:
        for remark in remarks(each.pod.annotations, each.name, names):
            yield f"{each.full_name}: {remark}"


def _told(state: State, otherwise: Mapping[str, Cpuset]) -> dict[str, Cpuset]:
    """Return where containers run by what the runtime was told; *otherwise* where left alone."""
    cpusets = {}
    for container_id in state.placed:
        cpus, mems = state.told[container_id]
        there = otherwise.get(container_id, (EMPTY, EMPTY))
        cpusets[container_id] = cpus or there[0], mems or there[1]
    return cpusets


def _holdings(state: State, cpusets: Mapping[str, Cpuset]) -> dict[str, dict[str, object]]:
    """Return what every container holds and where it runs, by name."""
    holdings = {}
    for container_id, placed in state.placed.items():
        cpus, mems = cpusets[container_id]
        shown = view.container(state, placed)
        held = {name: shown[name] for name in ("pool", "exclusive", "shared_milli", "isolated")}
        holdings[placed.container.full_name] = {**held, "cpus": str(cpus), "mems": str(mems)}
    return holdings

"""Pods with resources as a whole, known late or never: the books, the pod's memory, a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Described, PodStopped, Synchronized
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.store.encoding import decode_event, decode_grant, encode, encode_event
from nri_policy.workload.amounts import described
from nri_policy.workload.pod import Container, Resources
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import EngineDriver
from tests.support.pod_level import CONTAINERS, MIB, WHOLE, manifest, said, shown

FILLED: dict[str, Any] = {"main": {"limits": {"cpu": 4, "memory": "512Mi"}}}
SHAPES: tuple[tuple[dict[str, Any], Any], ...] = (
    (CONTAINERS, WHOLE),
    (CONTAINERS | FILLED | {"mesh": {}}, WHOLE),
    ({"log": {}, "web": {}}, {"requests": {"cpu": 1}, "limits": {"cpu": 3, "memory": "1Gi"}}),
    ({"log": {}, "mesh": CONTAINERS["mesh"]}, {"requests": {"cpu": 2, "memory": "1Gi"}}),
    ({"main": CONTAINERS["main"], "side": CONTAINERS["main"]}, None),
)
PODS = [manifest(*shape, name=f"pod{number}") for number, shape in enumerate(SHAPES)]
ALL = [(pod, name) for pod in PODS for name in shown(pod)]
ACTIONS = ("create", "create", "create known", "stop", "describe", "resize", "restart", "end")

steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, len(ALL) - 1)), max_size=30)


class Life(EngineDriver):
    """A node with pods of `PODS`."""

    def __init__(self) -> None:
        super().__init__("package:2 numa:2 core:4")
        self.untouched = self.engine.state.snapshot()
        self.running: dict[str, Container] = {}

    def act(self, action: str, number: int) -> None:  # noqa: C901, PLR0912 - a case for each
        """Apply an action to container *number* of `ALL`."""
        pod, name = ALL[number]
        container = shown(pod)[name]
        match action:
            case "create" | "create known":
                if container.id in self.running:
                    return
                if action == "create known":
                    container = described(container, said(pod))
                try:
                    self.handle(Created(container=container))
                except PlacementError:
                    return
                self.running[container.id] = container
            case "stop":
                if self.running.pop(container.id, None):
                    self.stop(container)
            case "describe":
                event = Described(pod_id=container.pod.id, said=said(pod))
                assert decode_event("described", encode_event(event), "") == event
                self.handle(event)
            case "resize":
                if container.id in self.running and name != "log":
                    memory = container.resources.memory_limit and 256 * MIB
                    try:
                        self.resize(container, Resources(memory_limit=memory, cpu_shares=205))
                    except PlacementError:
                        return
            case "restart":
                self.restart()
            case "end":
                for each in [*self.running.values()]:
                    if each.pod.id == container.pod.id:
                        self.runtime.forget(each.id)
                        del self.running[each.id]
                self.handle(PodStopped(pod_id=container.pod.id))
            case _:
                raise AssertionError(action)

    def restart(self) -> None:
        """Go on with what is stored: nobody moves."""
        view = view_of(self.engine)
        held = {each: decode_grant(encode(view.to_store(each))) for each in view.placed}
        listed = tuple(
            nodes.running(
                replace(each, resources=view.placed[key].container.resources),
                self.runtime.cpus[key],
                self.runtime.mems[key],
                self.runtime.quotas.get(key),
            )
            for key, each in self.running.items()
        )
        before = self.requests()
        self.engine = type(self.engine)(self.engine.layout.machine, self.engine.layout.settings)
        assert not self.handle(Synchronized(containers=listed, held=held)).changes
        assert self.requests() == before

    def requests(self) -> dict[str, Any]:
        placed = self.engine.state.placed
        return {each: (placed[each].request, placed[each].grant) for each in sorted(placed)}

    def check(self) -> None:
        bookkeeping.check(self.engine, self.runtime)
        for pod in PODS:
            state = self.engine.state
            placed = [state.placed[each] for each in state.of_pod(pod.metadata.name)]
            whole = max((each.request.pod_memory for each in placed), default=0)
            if not whole:
                continue
            own = sum(each.request.memory for each in placed if not each.request.pod_memory)
            left = [each.request.memory for each in placed if each.request.pod_memory]
            assert sum(left) == max(0, whole - own) == max(left), "with one of them, and once"
            known = [each for each in placed if each.container.requirements is not None]
            exclusive = sum(each.request.exclusive for each in known)
            if placed[0].container.pod.qos is QoS.GUARANTEED:
                assert 1000 * exclusive <= pod.spec.total("limits").get("cpu", 0)


@given(steps)
def test_the_books_are_right_whatever_is_known_of_pods_and_when(
    steps: Sequence[tuple[str, int]],
) -> None:
    life = Life()
    for action, number in steps:
        life.act(action, number)
        life.check()
    for each in life.running.values():
        life.runtime.forget(each.id)
        life.handle(PodStopped(pod_id=each.pod.id))
    assert life.engine.state.snapshot() == life.untouched

"""A node's life in tests: containers come, change and go, and the books are checked."""

from __future__ import annotations

from typing import Any

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Reconfigured, Resized, Stopped, Synchronized
from nri_policy.engine.grant import Decision, Grant
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.hardware.machine import Machine
from nri_policy.workload.pod import Container, Resources
from tests.support import bookkeeping, nodes


class EngineDriver:
    """An engine, a runtime that does as told, and the containers by a letter of their own."""

    def __init__(self, machine: Machine | str = nodes.SMALL, **spec: Any) -> None:
        if isinstance(machine, str):
            machine = nodes.machine(machine)
        self.engine = Engine(machine, nodes.settings(**spec))
        self.runtime = bookkeeping.Runtime()
        self.decision = Decision()  # the last one

    def handle(self, event: Event) -> Decision:
        """Apply *event*; a refusal must change nothing."""
        before = self.engine.state.snapshot()
        try:
            self.decision = self.engine.handle(event)
        except BaseException:
            assert self.engine.state.snapshot() == before
            raise
        if isinstance(event, Synchronized):
            self.runtime.list(event.containers)
        self.runtime.apply(self.decision)
        return self.decision

    def create(self, container: Container) -> str:
        """Create a container and return its CPUs."""
        self.handle(Created(container=container))
        bookkeeping.check(self.engine, self.runtime)
        return self.cpus(container)

    def refuse(self, event: Event | Container) -> str:
        """Return the message that refuses *event*."""
        try:
            self.handle(Created(container=event) if isinstance(event, Container) else event)
        except Refused as refusal:
            return str(refusal)
        raise AssertionError(f"{event} was not refused")

    def resize(self, container: Container, resources: Resources) -> str:
        """Resize a container and return its CPUs."""
        self.handle(Resized(container_id=container.id, resources=resources))
        bookkeeping.check(self.engine, self.runtime)
        return self.cpus(container)

    def stop(self, container: Container) -> None:
        """Stop a container."""
        self.runtime.forget(container.id)
        self.handle(Stopped(container_id=container.id))
        bookkeeping.check(self.engine, self.runtime)

    def reconfigure(self, *, machine: Machine | None = None, **spec: Any) -> Decision:
        """Give the engine new settings, or a new machine."""
        settings = nodes.settings(**spec) if spec or machine is None else None
        self.handle(Reconfigured(settings=settings, machine=machine))
        bookkeeping.check(self.engine, self.runtime)
        return self.decision

    def cpus(self, container: Container) -> str:
        """Return the CPUs that the runtime runs a container on."""
        return str(self.runtime.cpus[container.id])

    def mems(self, container: Container) -> str:
        """Return the memory nodes that the runtime runs a container on."""
        return str(self.runtime.mems[container.id])

    def grant(self, container: Container) -> Grant:
        """Return what a container holds."""
        return self.engine.state.placed[container.id].grant

    def pool(self, container: Container) -> str:
        """Return the name of the pool that a container is in."""
        return self.engine.layout.tree.pools[self.grant(container).pool].name

    def changed(self) -> dict[str, str]:
        """Return the CPUs of the others that the last decision moved, by container id."""
        moved = self.runtime.moved
        changes = self.decision.changes
        return {each: str(change.cpus) for each, change in changes.items() if each in moved}

    def free(self) -> CPUSet:
        """Return the sharable CPUs that are no one's own."""
        return self.engine.state.supply.free_cpus()

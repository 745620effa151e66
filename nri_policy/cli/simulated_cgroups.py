"""The cgroups of a simulated node: what a kernel would say of the embedded runtime's containers."""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy.audit.comparison import Cpuset, Observed
from nri_policy.cpuset import CPUSet
from nri_policy.runtime.containers import State
from nri_policy.runtime.embedded import EmbeddedRuntime


class SimulatedCgroups:
    """A `Reader` of containers that have no threads, and run where the runtime has set them."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        self._runtime = runtime

    def observe(
        self,
        container_id: str,
        cgroup: str,  # noqa: ARG002 - the signature of a Reader
        *,
        turn: int,  # noqa: ARG002 - the same
        watched: Iterable[int] = (),  # noqa: ARG002 - the same
    ) -> Observed | None:
        """Return where a container may run, None if it does not."""
        for each in self._runtime.containers:
            if each.id == container_id and each.state is State.RUNNING:
                machine = self._runtime.machine
                return Observed(
                    cpus=_cpuset(each.cpus, machine.online_cpus),
                    mems=_cpuset(each.mems, machine.memory_nodes),
                    threads={},
                )
        return None

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget nothing: nothing is kept."""


def _cpuset(written: CPUSet, there: CPUSet) -> Cpuset:
    return Cpuset(written=written, effective=written & there or there)

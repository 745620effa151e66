"""How the daemon is (`status`)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.settings import ReloadResult


class PublicationReport(Struct, frozen=True, kw_only=True):
    """A copy of the node's NodeResourceTopology object that is kept up to date."""

    to: str  # `the cluster`, or a file
    phase: str = "waiting"  # or published, failing, off
    version: str = ""  # of the API, written last
    generation: int = 0  # decisions until the state that was written last
    written_at: float = 0.0  # seconds since the epoch; 0 for never
    written: int = 0  # this and the next two: numbers since the daemon's start
    unchanged: int = 0  # writes left out because nothing had changed
    failed: int = 0
    trouble: str = ""  # of the last attempt: unreachable, unauthorized, forbidden, no-crd, …
    error: str = ""  # the same in words
    rivals: tuple[str, ...] = ()  # field managers that write the zones of the same object


class StatusReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daemon and what it has placed."""

    version: str
    synchronized: bool  # whether it has taken over the runtime's containers
    runtime: str  # name and version; empty while none is connected
    pools: int
    containers: int  # that hold something
    refused: int  # containers of existing pods
    online_cpus: CPUSet
    reserved_cpus: CPUSet
    isolated_cpus: CPUSet
    exclusive_cpus: CPUSet  # that are containers' own now
    shared_cpus: CPUSet  # not exclusive to a container
    notices: tuple[str, ...]  # what is odd about the settings and the machine
    publications: tuple[PublicationReport, ...]
    latest_reload: ReloadResult | None = None
    lacking_classes: int = 0  # containers that do without a part of their classes
    tunables: Mapping[str, int] = {}  # how many there are, by state
    cpu_seconds: float = 0.0  # that the daemon has used since its start
    memory_bytes: int = 0  # that it has in memory now (RSS)
    offline_cpus: CPUSet | None = None  # None: all are online

    @property
    def usage(self) -> str:
        """What the daemon uses of its node, in words."""
        memory = format_bytes(self.memory_bytes)
        return f"{memory} of memory, {self.cpu_seconds:.1f} s of CPU time since its start"

"""How the daemon is (`status`)."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import Reload


class PublicationReport(Struct, frozen=True, kw_only=True):
    """A copy of the node's NodeResourceTopology object that is kept up to date."""

    to: str  # `the cluster`, or a file
    phase: str  # waiting, published, failing, off
    version: str  # of the API, written last
    generation: str  # a number; protobuf's JSON has 64 bits as texts
    written_at: float  # seconds since the epoch; 0 for never
    written: str  # this and the next two: numbers since the daemon's start
    unchanged: str
    failed: str
    trouble: str
    error: str
    rivals: tuple[str, ...]  # who else writes the same object


class StatusReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The daemon and what it has placed."""

    version: str
    synchronized: bool  # whether it has taken over the runtime's containers
    runtime: str  # name and version; empty while none is connected
    pools: int
    containers: int
    refused: int
    online_cpus: CPUSet
    reserved_cpus: CPUSet
    isolated_cpus: CPUSet
    exclusive_cpus: CPUSet
    shared_cpus: CPUSet
    notices: tuple[str, ...]
    publications: tuple[PublicationReport, ...]
    latest_reload: Reload | None = None
    lacking_classes: int = 0  # containers that do without a part of their classes
    unsupported_annotations: int = 0  # containers with such

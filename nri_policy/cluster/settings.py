"""ClusterPlacement: the settings of the cluster side; every default stands here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from nri_policy.cluster.document import DocumentError, convert, join
from nri_policy.cluster.matching import Toleration
from nri_policy.cluster.node import HOSTNAME
from nri_policy.units import parse_duration
from nri_policy.wording import quoted

API_VERSION = "config.nri/v1alpha1"
KIND = "ClusterPlacement"
ZONE = "topology.kubernetes.io/zone"
ZONE_LEVEL = "zone/"  # what a level below the host begins with
MAX_LEVELS = 16

Strategy = Literal["LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"]


class _Section(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Topology(_Section, frozen=True):
    """A tree of domains: levels are node labels, coarse to fine."""

    name: str = "default"
    levels: list[str] = field(default_factory=lambda: [ZONE, HOSTNAME])
    node_labels: dict[str, str] = {}  # the nodes it is made of
    tolerations: list[Toleration] = []  # added to every pod's
    below_host: list[str] = []  # types of NodeResourceTopology zones, coarse to fine

    @property
    def every_level(self) -> tuple[str, ...]:
        """The levels with those below the host."""
        return (*self.levels, *(ZONE_LEVEL + each for each in self.below_host))

    @property
    def by_host(self) -> bool:
        """Whether its leaves are hosts, or parts of them."""
        return self.levels[-1] == HOSTNAME


class Extender(_Section, frozen=True):
    """How the scheduler extender filters and scores."""

    strategy: Strategy = "LeastAllocated"
    resources: dict[str, int] = field(default_factory=lambda: {"cpu": 1, "memory": 1})
    choose: bool = False
    strict: bool = False


class Groups(_Section, frozen=True):
    """How groups wait."""

    gate: str = "placement.nri/group"
    timeout: str = "10m"
    preemption: bool = False


class Failure(_Section, frozen=True):
    """When a node counts as failed, and how often replacement is tried."""

    policy: Literal["PodTermination", "Fixed30s"] = "PodTermination"
    fail_fast: bool = True


class Settings(_Section, frozen=True):
    """All settings."""

    topologies: list[Topology] = field(default_factory=lambda: [Topology()])
    algorithm: Literal["Mixed", "BestFit", "LeastFree"] = "Mixed"
    balanced: bool = False
    preferred_node_affinity: bool = True
    extender: Extender = Extender()
    groups: Groups = Groups()
    failure: Failure = Failure()


class _Object(Struct, rename="camel"):
    api_version: str = API_VERSION
    kind: str = KIND
    spec: Settings | None = None


def read_settings(value: object, path: str = "") -> Settings:
    """Return the settings in a ClusterPlacement object, the defaults for None.

    Raises DocumentError.
    """
    if value is None:
        return Settings()
    document = convert(value, _Object, path)
    for name, given, expected in (
        ("apiVersion", document.api_version, API_VERSION),
        ("kind", document.kind, KIND),
    ):
        if given != expected:
            raise DocumentError(join(path, name), f"{quoted(given)} is not {expected}")
    settings = document.spec or Settings()
    names: set[str] = set()
    for number, topology in enumerate(settings.topologies):
        place = join(join(path, "spec.topologies"), number)
        _check_topology(topology, place)
        if topology.name in names:
            raise DocumentError(
                join(place, "name"), f"{quoted(topology.name)} names two topologies"
            )
        names.add(topology.name)
    if not settings.topologies:
        raise DocumentError(join(path, "spec.topologies"), "at least one topology is required")
    try:
        parse_duration(settings.groups.timeout)
    except ValueError as error:
        raise DocumentError(join(path, "spec.groups.timeout"), str(error)) from None
    return settings


def _check_topology(topology: Topology, path: str) -> None:
    levels = join(path, "levels")
    if not 1 <= len(topology.levels) <= MAX_LEVELS:
        raise DocumentError(levels, f"{len(topology.levels)} levels are not 1 to {MAX_LEVELS}")
    for number, level in enumerate(topology.levels):
        place = join(levels, number)
        if not level or level.startswith(ZONE_LEVEL):
            raise DocumentError(place, f"{quoted(level)} is not a node label")
        if level in topology.levels[:number]:
            raise DocumentError(place, f"{quoted(level)} is there twice")
        if level == HOSTNAME and number < len(topology.levels) - 1:
            raise DocumentError(place, f"{HOSTNAME} can only be the last level")
    for number, zone in enumerate(topology.below_host):
        place = join(join(path, "belowHost"), number)
        if not topology.by_host:
            raise DocumentError(place, f"zones come only behind the level {HOSTNAME}")
        if not zone or zone in topology.below_host[:number]:
            raise DocumentError(place, f"{quoted(zone)} is empty or there twice")

"""ClusterPlacement: the settings of the cluster side; every default stands here.

Read as the node's settings are: all errors at once, each with its path and its place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.cluster.objects.assignment import check_count
from nri_policy.cluster.objects.document import DocumentError, convert, each_at, join
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.metadata import ObjectIdentity
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.settings import (
    API_VERSION,
    Problem,
    Section,
    SettingsError,
    load_kind,
    read_section,
    readers,
)

KIND = "ClusterPlacement"
ZONE = "topology.kubernetes.io/zone"
ZONE_LEVEL = "zone/"  # what a level below the host begins with
MAX_LEVELS = 16
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_QUALIFIED_NAME = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}"

Strategy = Literal["LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"]
Packing = Literal["Compact", "Mixed", "BestFit", "LeastFree"]
FailurePolicy = Literal["PodTermination", "Fixed30s"]
Holds = Literal["groups", "all"]  # the pods that keep off reserved hosts


def read_text(value: object) -> str:
    """Read a text that says something."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{quoted(value)} is not a string")
    return value


def read_gate(value: object) -> str:
    """Read the name of a scheduling gate, as pods can have it."""
    gate = read_text(value)
    if not re.fullmatch(_QUALIFIED_NAME, gate):
        raise ValueError(f"{quoted(gate)} is no name of a gate, such as example.com/group")
    return gate


def one_of(kind: Any) -> Callable[[object], Any]:
    """Return the reader of a Literal."""
    names = get_args(kind)

    def read(value: object) -> Any:
        if value in names:
            return value
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ValueError(f"{quoted(value)} is not one of {', '.join(names)}{hint}")

    return read


def read_levels(value: object) -> list[str]:
    """Read the labels that are levels, coarse to fine."""
    found = [*readers.names(value)]
    if not 1 <= len(found) <= MAX_LEVELS:
        raise ValueError(f"{len(found)} levels are not 1 to {MAX_LEVELS}")
    for number, level in enumerate(found):
        if level.startswith(ZONE_LEVEL):
            raise ValueError(f"{quoted(level)} is not a node label")
        if level in found[:number]:
            raise ValueError(f"{quoted(level)} is given twice")
        if level == HOSTNAME and number < len(found) - 1:
            raise ValueError(f"{HOSTNAME} can only be the last level")
    return found


def read_zone_types(value: object) -> list[str]:
    """Read types of zones, coarse to fine."""
    found = [*readers.names(value)]
    for number, zone in enumerate(found):
        if zone in found[:number]:
            raise ValueError(f"{quoted(zone)} is given twice")
    return found


def read_labels(value: object) -> dict[str, str]:
    """Read a map of labels."""
    return convert(value, dict[str, str], "")


def read_weights(value: object) -> dict[str, int]:
    """Read a map of resources to their weights."""
    found = convert(value, dict[str, int], "")
    for resource, weight in found.items():
        check_count(weight, 0, resource)
    return found


def read_tolerations(value: object) -> list[Toleration]:
    """Read tolerations as pods have them; the API server checks those, but not these."""
    found = convert(value, list[Toleration], "")
    for each, path in each_at(found, ""):
        for name, given, known in (
            ("operator", each.operator, ("Exists", "Equal")),
            ("effect", each.effect, ("NoSchedule", "PreferNoSchedule", "NoExecute")),
        ):
            if given and given not in known:
                hint = did_you_mean(given, known)
                raise DocumentError(
                    join(path, name), f"{quoted(given)} is not one of {', '.join(known)}{hint}"
                )
        if not each.key and each.operator != "Exists":
            raise DocumentError(join(path, "key"), "it is required unless the operator is Exists")
    return found


Flag = Annotated[bool, readers.flag]


class Topology(Section, frozen=True, kw_only=True):
    """A tree of domains: levels are node labels, coarse to fine."""

    name: Annotated[str, read_text] = "default"
    levels: Annotated[list[str], read_levels] = field(default_factory=lambda: [ZONE, HOSTNAME])
    node_labels: Annotated[dict[str, str], read_labels] = field(
        name="nodeLabels", default_factory=dict
    )
    # added to every pod's
    tolerations: Annotated[list[Toleration], read_tolerations] = field(default_factory=list)
    below_host: Annotated[list[str], read_zone_types] = field(
        name="belowHost", default_factory=list
    )

    @property
    def every_level(self) -> tuple[str, ...]:
        """The levels with those below the host."""
        return (*self.levels, *(ZONE_LEVEL + each for each in self.below_host))

    @property
    def by_host(self) -> bool:
        """Whether its leaves are hosts, or parts of them."""
        return self.levels[-1] == HOSTNAME

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield that zones are of no host."""
        if self.below_host and not self.by_host:
            last = self.levels[-1]
            meant = f"; {quoted(last)} is another label" if did_you_mean(last, [HOSTNAME]) else ""
            yield "belowHost", f"zones come only behind the level {HOSTNAME}{meant}"


class Extender(Section, frozen=True, kw_only=True):
    """How the scheduler extender filters and scores."""

    strategy: Annotated[Strategy, one_of(Strategy)] = "LeastAllocated"
    resources: Annotated[dict[str, int], read_weights] = field(
        default_factory=lambda: {"cpu": 1, "memory": 1}
    )
    choose: Flag = False
    strict: Flag = False


class Groups(Section, frozen=True, kw_only=True):
    """How groups wait."""

    gate: Annotated[str, read_gate] = "placement.nri/group"
    timeout: Annotated[float, parse_duration] = 600.0  # seconds
    holds: Annotated[Holds, one_of(Holds)] = "groups"
    # seconds without progress after which hosts are set aside no longer
    hold_timeout: Annotated[float, parse_duration] = field(name="holdTimeout", default=600.0)
    preemption: Flag = False


class FailureSettings(Section, frozen=True, kw_only=True):
    """When a node counts as failed, and how often replacement is tried."""

    policy: Annotated[FailurePolicy, one_of(FailurePolicy)] = "PodTermination"
    fail_fast: Flag = field(name="failFast", default=True)


class ClusterSettings(Section, frozen=True, kw_only=True):
    """The `spec` of a ClusterPlacement, checked and typed."""

    topologies: list[Topology] = field(default_factory=lambda: [Topology()])
    algorithm: Annotated[Packing, one_of(Packing)] = "Compact"
    balanced: Flag = False
    preferred_node_affinity: Flag = field(name="preferredNodeAffinity", default=True)
    extender: Extender = Extender()
    groups: Groups = Groups()
    failure: FailureSettings = FailureSettings()

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the topologies as a whole."""
        if not self.topologies:
            yield "topologies", "at least one topology is required"
        names = [each.name for each in self.topologies]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield f"topologies[{number}].name", f"{quoted(name)} names two topologies"


def load(text: str | bytes, origin: str) -> ClusterSettings:
    """Return the settings in a ClusterPlacement document; *origin* names it in messages.

    Raises SettingsError.
    """

    def read_spec(spec: Any, problems: list[Problem]) -> ClusterSettings:
        settings = read_section(ClusterSettings, spec, "spec", problems)
        if problems:
            raise SettingsError(origin, (*problems,))
        return settings

    return load_kind(text, origin, KIND, read_spec)


def read_settings(value: object) -> ClusterSettings:
    """Return the settings in a ClusterPlacement object, the defaults for None.

    Raises DocumentError for the first thing that is wrong.
    """
    given = {} if value is None else value
    if not isinstance(given, dict):
        raise DocumentError("", f"{quoted(value)} is not an object")
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if given.get(name, expected) != expected:
            raise DocumentError(name, f"{quoted(given[name])} is not {expected}")
    problems: list[Problem] = []
    settings = read_section(ClusterSettings, given.get("spec"), "spec", problems)
    if problems:
        raise DocumentError(problems[0].path, problems[0].text)
    return settings


class _Level(Struct, rename="camel"):
    node_label: str


class _Levels(Struct):
    levels: list[_Level]


class _KueueTopology(Struct):
    metadata: ObjectIdentity
    spec: _Levels


def read_topology(value: object, path: str) -> Topology:
    """Return the topology in a Topology object of Kueue's; raises DocumentError."""
    document = convert(value, _KueueTopology, path)
    _, name = document.metadata.key(path, "a Topology")
    try:
        levels = read_levels([each.node_label for each in document.spec.levels])
        return Topology(name=name, levels=levels)
    except ValueError as error:
        raise DocumentError(join(path, "spec.levels"), str(error)) from None


def with_topologies(settings: ClusterSettings, others: Iterable[Topology]) -> ClusterSettings:
    """Return *settings* with the *others* added, but for topologies of a name in use."""
    known = {each.name for each in settings.topologies}
    more = [each for each in others if each.name not in known]
    return replace(settings, topologies=[*settings.topologies, *more]) if more else settings

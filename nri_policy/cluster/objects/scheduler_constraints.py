"""What of a pod kube-scheduler judges by what other pods have, or by more than nodes.

What pods of one pod set demand of each other is kept when groups are placed: at most one of them on
a host, or in a domain of a level, and how much the values of a label may differ (cluster.md §3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from nri_policy.cluster.objects.label_selector import LabelSelector
from nri_policy.cluster.objects.node import HOSTNAME

_OWN_KIND = "pod anti-affinity to its own kind"
_HOST_PORT = "a host port"


def _own_kind_over(label: str) -> str:
    return f"{_OWN_KIND} over {label}"


VOLUME = "a persistent volume"


class _Volume(Struct, rename="camel", gc=False):
    persistent_volume_claim: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None


class _Term(Struct, rename="camel", gc=False):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: dict[str, Any] | None = None
    mismatch_label_keys: list[str] | None = None

    def is_own_kind(self, labels: Mapping[str, str]) -> bool:
        """Return whether it keeps pods with these labels apart, as is plain."""
        elsewhere = self.namespaces or self.mismatch_label_keys
        return (
            bool(self.topology_key)
            and not elsewhere
            and self.namespace_selector is None
            and self.label_selector is not None
            and self.label_selector.selects(labels)
        )


class _PodAffinity(Struct, gc=False):
    required: list[_Term] | None = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class PodAffinities(Struct, rename="camel", gc=False):
    """Affinity to other pods, in documents."""

    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _SpreadConstraint(Struct, rename="camel", gc=False):
    when_unsatisfiable: str = ""
    topology_key: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    label_selector: LabelSelector | None = None

    def is_own_kind(self, labels: Mapping[str, str]) -> bool:
        """Return whether pods with these labels are to be balanced among themselves."""
        return (
            bool(self.topology_key)
            and self.max_skew > 0
            and self.min_domains is None
            and self.label_selector is not None
            and self.label_selector.selects(labels)
        )


class OwnConstraints(Struct, frozen=True):
    """What pods of one pod set demand of each other, beside what keeps them off a host."""

    apart_over: tuple[str, ...] = ()  # labels of which no two share a value
    max_skew: tuple[tuple[str, int], ...] = ()  # by how many pods values of a label may differ

    def names(self, *, placed: bool = False) -> list[str]:
        """Return them in words, without a skew for pods that are *placed*: placing keeps it."""
        skews = [] if placed else [f"topology spread over {key}" for key, _ in self.max_skew]
        return [*map(_own_kind_over, self.apart_over), *skews]


class Port(Struct, rename="camel", gc=False):
    """A port of a container, in documents."""

    host_port: int | None = None


class PodClaim(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A resource claim that a pod names, or has made for it of a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None

    @property
    def is_template(self) -> bool:
        """Whether each pod gets a separate claim."""
        return not self.resource_claim_name

    @property
    def object_name(self) -> str:
        """The name of the claim, or of its template."""
        return self.resource_claim_name or self.resource_claim_template_name or ""


class ConstrainedSpec(Struct, rename="camel", gc=False):
    """What else of a pod's spec constrains where it runs, in documents."""

    volumes: list[_Volume] | None = None
    topology_spread_constraints: list[_SpreadConstraint] | None = None
    resource_claims: list[PodClaim] | None = None
    host_network: bool | None = None  # its containers' ports are the host's


NONE = OwnConstraints()


def constraints_of(
    spec: ConstrainedSpec,
    affinity: PodAffinities | None,
    ports: Collection[Port],
    labels: Mapping[str, str],
) -> tuple[tuple[str, ...], OwnConstraints]:
    """Return what of a pod with these *labels* only kube-scheduler can judge, in words.

    It occupies *ports* of its host. Also return what such pods demand of each other.
    """
    claims = any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ())
    others = spec.topology_spread_constraints or spec.resource_claims
    if not (affinity or ports or claims or others):
        return (), NONE  # mostly
    near, apart = (
        (each and each.required) or []
        for each in (affinity and affinity.pod_affinity, affinity and affinity.pod_anti_affinity)
    )
    own_kind = [each.is_own_kind(labels) for each in apart]
    spreads = [
        each
        for each in spec.topology_spread_constraints or ()
        if each.when_unsatisfiable != "ScheduleAnyway"
    ]
    found = {
        VOLUME: claims,
        "pod affinity": bool(near) or not all(own_kind),
        _OWN_KIND: any(
            own and each.topology_key == HOSTNAME for own, each in zip(own_kind, apart, strict=True)
        ),
        "topology spread constraints": not all(each.is_own_kind(labels) for each in spreads),
        _HOST_PORT: bool(ports),
        "resource claims": bool(spec.resource_claims),
    }
    return tuple(name for name, holds in found.items() if holds), _own(apart, spreads, labels)


def _own(
    apart: Sequence[_Term], spreads: Sequence[_SpreadConstraint], labels: Mapping[str, str]
) -> OwnConstraints:
    found = [each.topology_key for each in apart if each.is_own_kind(labels)]
    skews = {each.topology_key: each.max_skew for each in spreads if each.is_own_kind(labels)}
    over = tuple(dict.fromkeys(each for each in found if each != HOSTNAME))
    return OwnConstraints(over, (*skews.items(),)) if over or skews else NONE


def exclude_each_other(constraints: Collection[str]) -> bool:
    """Return whether pods that have all of *constraints* cannot share a host."""
    return _OWN_KIND in constraints or _HOST_PORT in constraints


def describe(constraints: Collection[str], levels: Collection[str] = ()) -> str:
    """Return that only kube-scheduler can judge *constraints*, and what they mean here.

    Groups are placed by *levels*.
    """
    kept = ["on each host"] if exclude_each_other(constraints) else []
    kept += [f"in each {level}" for level in levels if _own_kind_over(level) in constraints]
    here = f"; here that means at most one pod {' and '.join(kept)}" if kept else ""
    others = ", and pods of other groups are not counted" if kept else ""
    return f"only kube-scheduler can judge {', '.join(constraints)}{here}{others}"

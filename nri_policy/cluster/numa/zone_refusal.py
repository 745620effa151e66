"""Texts on pods of a group that nodes refuse since they align pods to one NUMA node."""

from __future__ import annotations

from collections.abc import Mapping

from nri_policy.cluster.engine.state.host_limits import HostRefusal, Refusals, RefusedByHost
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.requests.group import Condition, GroupStatus
from nri_policy.foundation.wording import counted

ZONES_REFUSE = "ZonesRefuse"  # the condition of a group that only zones are in the way of
_WHEN_EMPTY = "even if it is empty"
_NOW = "while its zones are as full as now"


def describe_refusal(status: GroupStatus, refused: RefusedByHost, small: RefusedByHost) -> Refusals:
    """Return what is *refused* at the places in *status*; *small* is what hosts refuse if empty."""
    by_pod_set: dict[str, dict[str, HostRefusal]] = {}
    curable = set[str]()  # pod sets of which hosts would take more if they were empty
    for host, found in refused.items():
        for name, each in found.items():
            by_pod_set.setdefault(name, {})[host] = each
            if name not in small[host] or small[host][name].pods < each.pods:
                curable.add(name)
    pods = {name: sum(each.pods for each in found.values()) for name, found in by_pod_set.items()}
    texts = [
        _text(each, own, _NOW if each.pod_set in curable else _WHEN_EMPTY)
        for each in status.assignments
        if (own := by_pod_set.get(each.pod_set))
    ]
    return Refusals(pods, texts, not curable)


def make_refusal(message: str, refusals: Refusals) -> GroupStatus:
    """Return the status of a group that zones refuse; *message* says what they leave room for."""
    text = "; ".join(refusals.texts)
    reason = "ZonesTooSmall" if refusals.too_small else "ZonesFull"
    condition = Condition(type=ZONES_REFUSE, reason=reason, message=text)
    message = "; ".join(filter(None, (message, text)))
    return GroupStatus(state="Unplaceable", message=message, conditions=[condition])


def _text(assignment: Assignment, refused: Mapping[str, HostRefusal], when: str) -> str:
    """Return that hosts refuse pods of a pod set: *refused*, by host."""
    hosts = len({host for host, _ in assignment.by_host()})
    pods, of = (sum(getattr(one, name) for one in refused.values()) for name in ("pods", "of"))
    some = "its pods" if pods == of else f"{pods} of {of} of its pods"
    if not any(one.alone for one in refused.values()):
        some += " beside those of the other pod sets"
    host, first = next(iter(refused.items()))
    return (
        f"pod set {assignment.pod_set}: on {len(refused)} of {counted(hosts, 'host')} the node"
        f" aligns pods to one NUMA node, and refuses {some} {when} ({host}: {first.why})"
    )

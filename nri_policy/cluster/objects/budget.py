"""PodDisruptionBudgets: how many of which pods may be evicted now."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.cluster.objects.document import convert
from nri_policy.cluster.objects.label_selector import LabelSelector
from nri_policy.cluster.objects.metadata import Namespaced, ObjectIdentity
from nri_policy.cluster.objects.pod import Pod

KIND = "PodDisruptionBudget"


class Budget(Namespaced, frozen=True):
    """A budget of the pods that a selector selects."""

    selector: LabelSelector
    allowed: int  # evictions

    def covers(self, pod: Pod) -> bool:
        """Return whether *pod* is one of those."""
        return pod.namespace == self.namespace and self.selector.selects(pod.labels)


class _Spec(Struct):
    selector: LabelSelector | None = None


class _Status(Struct, rename="camel"):
    disruptions_allowed: int = 0


class _Budget(Struct):
    metadata: ObjectIdentity
    spec: _Spec | None = None
    status: _Status | None = None


def read_budget(value: object, path: str) -> Budget | None:
    """Return the budget in a PodDisruptionBudget object, None for one without a selector.

    Without a status it allows none. Raises DocumentError.
    """
    document = convert(value, _Budget, path)
    namespace, name = document.metadata.key(path, "a budget")
    selector = document.spec.selector if document.spec else None
    if selector is None:
        return None
    return Budget(
        namespace=namespace,
        name=name,
        selector=selector,
        allowed=max(0, document.status.disruptions_allowed) if document.status else 0,
    )

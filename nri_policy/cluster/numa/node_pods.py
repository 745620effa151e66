"""The pods on each node, for what would happen if some of them left. It does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nri_policy.cluster.objects.budget import Budget
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod


class NodePods:
    """The pods that are bound and have not ended, by node, and the budgets for evictions."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[Key, Pod]] = {}
        self._node_of: dict[Key, str] = {}
        self._budgets: dict[Key, Budget] = {}

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        key = pod.key
        self.remove_pod(*key)
        if pod.node and not pod.finished:
            self._by_node.setdefault(pod.node, {})[key] = pod
            self._node_of[key] = pod.node

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        node = self._node_of.pop((namespace, name), None)
        if node is not None:
            del self._by_node[node][namespace, name]
            if not self._by_node[node]:
                del self._by_node[node]

    def on(self, node: str) -> Collection[Pod]:
        """Return the pods on a node."""
        return self._by_node.get(node, {}).values()

    def set_budget(self, key: Key, budget: Budget | None) -> None:
        """Take in that a PodDisruptionBudget came, changed or went (None)."""
        if budget is None:
            self._budgets.pop(key, None)
        else:
            self._budgets[key] = budget

    def budgets(self) -> Collection[Key]:
        """Return the budgets that are known."""
        return self._budgets.keys()

    def budgets_of(self, pods: Sequence[Pod]) -> list[tuple[int, list[Pod]]]:
        """Return, by budget, how many of *pods* may be evicted, and which ones it covers."""
        namespaces = {each.namespace for each in pods}
        found = []
        for budget in self._budgets.values():
            if budget.namespace in namespaces:
                covered = [pod for pod in pods if budget.covers(pod)]
                if covered:
                    found.append((budget.allowed, covered))
        return found

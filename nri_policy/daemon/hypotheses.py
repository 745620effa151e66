"""What-if: what may be tried on a copy of the node: pods of manifests, and other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nri_policy.audit.auditor import Auditor
from nri_policy.audit.targets import list_unpinned
from nri_policy.daemon.reload import Reloads
from nri_policy.dra.hypothetical import allocator
from nri_policy.engine.event import Reconfigured
from nri_policy.kubelet.manifest_pods import ContainerFactory, Manifests, parse_manifests
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.node import CPUsAndMems, Node
from nri_policy.plugin.pods import Pods


class Hypotheses:
    """The inputs of what-if calls."""

    def __init__(
        self,
        node: Node,
        pods: Pods,
        reloads: Reloads,
        auditor: Auditor,
        unused: Callable[[], Mapping[str, int] | None],
    ) -> None:
        self._node = node
        self._pods = pods
        self._reloads = reloads
        self._auditor = auditor
        self._unused = unused

    def pods(self, manifests: str, replicas: int) -> Manifests:
        """Return the pods of *manifests* as this node's kubelet would start them; ValueError."""
        kubelet = Kubelet(memory_capacity=self._node.view.layout.machine.memory)
        factory = ContainerFactory(
            kubelet=kubelet,
            convert=self._pods.container,
            exact=self._pods.exact,
            allocator=allocator,
        )
        return parse_manifests(manifests, replicas, factory)

    async def settings(self, text: str) -> Reconfigured:
        """Return what the settings in a document would change; ValueError if they cannot."""
        return await self._reloads.proposed(text)

    async def observe_unpinned(self) -> Mapping[str, CPUsAndMems]:
        """Return where containers run, by the kernel, of which something is left alone."""
        seen = await self._auditor.observe(list_unpinned(self._node.view))
        return {each: (o.cpus.effective, o.mems.effective) for each, o in seen.items()}

    def unused(self) -> Mapping[str, int] | None:
        """Return how many devices of each resource are left, None where that is not known."""
        return self._unused()

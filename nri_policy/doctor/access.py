"""What the cluster grants: whether it is reached, knows our kinds, and lets us use them.

Asks only: an access review is answered and kept nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nri_policy.nrt.cluster import Cluster, KubeconfigError, access
from nri_policy.nrt.publisher import PublishError, Trouble
from nri_policy.nrt.reading import GROUP

if TYPE_CHECKING:
    from lightkube import AsyncClient

# What configs/kubernetes/rbac.yaml gives: group, resource, verbs
NEEDED = (
    ("", "nodes", ("get",)),
    (GROUP, "noderesourcetopologies", ("get", "create", "patch", "delete")),
    ("config.nri", "topologyawarepolicies", ("list", "watch")),
    ("config.nri", "topologyawarepolicies/status", ("patch",)),
)
_PATIENCE = 3.0  # seconds for a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How it is with the cluster."""

    trouble: Trouble | None = None  # of looking up our Node and its topology
    error: str = ""  # the same in words
    denied: tuple[str, ...] = ()  # "patch noderesourcetopologies"


def access_to(kubeconfig: Path | None, node: str) -> Access | None:
    """Return how it is with the cluster of a *kubeconfig* or of our pod, None for neither."""
    try:
        connect = access(kubeconfig)
    except KubeconfigError as error:
        return Access(trouble=Trouble.REFUSED, error=str(error))
    if connect is None:
        return None

    async def ask() -> Access:
        client = connect()
        cluster = Cluster(lambda: client, node, patience=_PATIENCE)
        try:
            await cluster.look()
            found = Access()
        except PublishError as error:
            found = Access(trouble=error.trouble, error=str(error))
        try:
            if found.trouble in {Trouble.UNREACHABLE, Trouble.UNAUTHORIZED}:
                return found
            denied = [
                f"{verb} {resource}"
                for group, resource, verb in _rights()
                if not await _may(client, group, resource, verb)
            ]
            return Access(trouble=found.trouble, error=found.error, denied=tuple(denied))
        finally:
            await cluster.close()

    return asyncio.run(ask())


def _rights() -> Iterator[tuple[str, str, str]]:
    for group, resource, verbs in NEEDED:
        for verb in verbs:
            yield group, resource, verb


async def _may(client: AsyncClient, group: str, resource: str, verb: str) -> bool:
    """Return whether we may do something; a server that does not say so is taken to allow it."""
    from lightkube.models.authorization_v1 import (  # noqa: PLC0415 - lightkube is large
        ResourceAttributes,
        SelfSubjectAccessReviewSpec,
    )
    from lightkube.resources.authorization_v1 import (  # noqa: PLC0415 - see above
        SelfSubjectAccessReview,
    )

    kind, _, part = resource.partition("/")
    attributes = ResourceAttributes(group=group, resource=kind, subresource=part, verb=verb)
    review = SelfSubjectAccessReview(
        spec=SelfSubjectAccessReviewSpec(resourceAttributes=attributes)
    )
    async with asyncio.timeout(_PATIENCE):
        answer = await client.create(review)
    return answer.status is None or answer.status.allowed

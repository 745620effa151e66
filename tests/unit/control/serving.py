"""A server at a socket of its own, as the daemon has one, with whatever a test serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc

from nri_policy.control.endpoint import serving
from nri_policy.control.listener import GROUP
from nri_policy.control.listener import listening as listening_at
from nri_policy.foundation.clock import Clock

Handlers = Sequence[grpc.GenericRpcHandler]


def listening(
    path: Path,
    shared: Handlers,
    private: Handlers = (),
    *,
    large: Collection[str] = (),
    group: str = GROUP,
) -> AbstractAsyncContextManager[None]:
    """Serve at *path*: *shared* to all who may open it, *private* only to the owner."""

    @asynccontextmanager
    async def serve(path: Path, *, owner_only: bool) -> AsyncIterator[None]:
        async with serving(path, [*shared, *(private if owner_only else ())], large):
            yield

    return listening_at(path, serve, Clock(), group=group)

"""The gRPC server behind the daemon's own socket, with all its services.

gRPC does not identify the caller. So calls that only the owner may make are not offered if others
can open the socket too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from nri_policy.control.listener import MAX_CONNECTIONS
from nri_policy.control.request_limits import MAX_REQUEST, RequestLimiter
from nri_policy.foundation.grpc_services import require_threads

MAX_CALLS = 64  # at a time
MAX_BYTES = (2 << 20) + MAX_REQUEST  # of a large request: two documents of 1 MiB
_BOUNDS = [
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 2000),  # clients are on this host
    ("grpc.max_connection_idle_ms", 5000),
    ("grpc.max_metadata_size", 8192),
    ("grpc.max_receive_message_length", MAX_BYTES),
]


@asynccontextmanager
async def serving(
    path: Path, handlers: Sequence[grpc.GenericRpcHandler], large: Collection[str] = ()
) -> AsyncIterator[None]:
    """Serve *handlers* at *path*, for the owner only; an old socket there is replaced.

    *large* are the methods, as `/service/method`, that accept large requests.
    Raises OSError if the socket cannot be made, or no threads can be started.
    """
    require_threads()
    server = _bound(path, handlers, RequestLimiter(large))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def _bound(
    path: Path, handlers: Sequence[grpc.GenericRpcHandler], limiter: RequestLimiter
) -> grpc.aio.Server:
    path.unlink(missing_ok=True)
    server = grpc.aio.server(
        interceptors=[limiter], options=_BOUNDS, maximum_concurrent_rpcs=MAX_CALLS
    )
    server.add_generic_rpc_handlers(handlers)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(f"{path}: cannot listen there: {error}") from error
    finally:
        os.umask(mask)
    return server

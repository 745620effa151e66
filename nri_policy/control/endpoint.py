"""The daemon's own socket: one gRPC server for all that it serves there.

Owns who may open the socket: its owner alone, or also the group `nri-policy` where there is one.
gRPC does not tell who is at the other end, so what only the owner may do is not served where such a
group exists.
"""

from __future__ import annotations

import grp
import logging
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from nri_policy.control.intake import LARGEST, Intake

log = logging.getLogger(__name__)

GROUP = "nri-policy"

_LONGEST = 107  # bytes; unix(7)
# Who may open the socket could still do it so often that no file or memory is left for the rest.
MOST_CONNECTIONS = 64
MOST_CALLS = 64  # at a time
MOST_BYTES = (2 << 20) + LARGEST  # of a large request: two documents of 1 MiB
_BOUNDS = [
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 2000),  # clients are on this host
    ("grpc.max_connection_idle_ms", 5000),
    ("grpc.max_metadata_size", 8192),
    ("grpc.max_receive_message_length", MOST_BYTES),
]


@asynccontextmanager
async def listening(
    path: Path,
    *,
    shared: Sequence[grpc.GenericRpcHandler],
    private: Sequence[grpc.GenericRpcHandler],
    large: Collection[str] = (),
    group: str = GROUP,
) -> AsyncIterator[None]:
    """Serve at *path*: *shared* to all who may open it, *private* only to the owner.

    *large* are the methods, as `/service/method`, that may be asked at length.
    Raises OSError where there can be no socket. Another daemon's old socket is replaced.
    """
    server = _bound(path, shared, private, _gid(group), Intake(large))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def _bound(
    path: Path,
    shared: Sequence[grpc.GenericRpcHandler],
    private: Sequence[grpc.GenericRpcHandler],
    gid: int | None,
    intake: Intake,
) -> grpc.aio.Server:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} exists, and is not a socket")
    if len(bytes(path)) > _LONGEST:
        raise OSError(f"{path} is longer than the {_LONGEST} bytes of a socket's path")
    path.unlink(missing_ok=True)
    server = grpc.aio.server(
        interceptors=[intake], options=_BOUNDS, maximum_concurrent_rpcs=MOST_CALLS
    )
    server.add_generic_rpc_handlers([*shared, *private] if gid is None else shared)
    mask = os.umask(0o177)  # nobody else gets in before we have decided
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(f"{path}: cannot listen there: {error}") from error
    finally:
        os.umask(mask)
    if gid is not None:
        _open_to(gid, path)
    return server


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _open_to(gid: int, path: Path) -> None:
    """Let a group open the socket, if that is ours to give."""
    try:
        os.chown(path, -1, gid)
    except OSError as error:
        log.warning("socket-not-shared", extra={"path": path, "gid": gid, "error": str(error)})
    else:
        path.chmod(0o660)

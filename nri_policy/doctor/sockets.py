"""Sockets: whether a process listens, and the name and version of a runtime behind one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import grpc
from msgspec import Struct

from nri_policy.nri.versions import Runtime
from nri_policy.proto.cri_pb2 import VersionRequest, VersionResponse
from nri_policy.proto.nri_pb2 import ConfigureRequest

_PATIENCE = 2.0  # seconds
_CREDENTIALS = struct.Struct("3i")  # process, user, group; unix(7)


class Socket(Struct, frozen=True, kw_only=True):
    """A socket's file: whether it exists, and the result of connecting."""

    path: Path
    there: bool
    problem: str = ""  # empty: a process listens
    peer: int = 0  # the process that does, 0 where we cannot see it


def socket_path(address: str) -> str:
    """Return the path of a socket's address, without unix:// and the old link of /var/run."""
    path = address.removeprefix("unix://")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def probe_socket(path: Path) -> Socket:
    """Try a socket; the listener sees a connection that ends at once."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE)
        try:
            probe.connect(str(path))
        except FileNotFoundError as error:
            return Socket(path=path, there=False, problem=error.strerror or str(error))
        except OSError as error:
            return Socket(path=path, there=True, problem=error.strerror or str(error))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    peer, _, _ = _CREDENTIALS.unpack(credentials)
    return Socket(path=path, there=True, peer=peer)


def runtime_at(path: Path) -> Runtime | None:
    """Return the runtime that answers at a CRI socket, None where none does."""
    if probe_socket(path).problem:  # gRPC would try again and again
        return None
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{path.resolve()}", options=options) as channel:
        ask: Callable[..., VersionResponse] = channel.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=VersionRequest.SerializeToString,
            response_deserializer=VersionResponse.FromString,
        )
        try:
            answer = ask(VersionRequest(), timeout=_PATIENCE)
        except grpc.RpcError:
            return None
    return runtime(answer.runtime_name, answer.runtime_version)


def runtime(name: str, version: str) -> Runtime:
    """Return what is known of a runtime by its name and version."""
    request = ConfigureRequest(runtime_name=name, runtime_version=version)
    return Runtime.from_request(request)

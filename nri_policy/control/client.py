"""The client of the control service, for commands."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from nri_policy.foundation.grpc_services import service_stub
from nri_policy.proto import control_pb2 as pb
from nri_policy.report import (
    AuditReport,
    Containers,
    ExplanationReport,
    JournalPage,
    OccupiedPoolReport,
    ResourceTopology,
    SettingsReport,
    StatusReport,
    TopologyReport,
    WhatIfReport,
    decode,
)
from nri_policy.settings import ReloadResult

_T = TypeVar("_T")
Explanations = ExplanationReport | tuple[ExplanationReport, ...]

_PATIENCE = 30.0  # seconds
_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
_STARTED = (
    "start it by `systemctl start nri-policy` or `nri-policy run`, or name its socket by"
    " --control-socket"
)
_ALLOWED = (
    "only root (try sudo) and members of the group nri-policy may ask it; the group must exist"
    " when the daemon starts"
)
_OWNERS = (
    "the daemon does not offer that on its socket: it has another version, or members of the group"
    " nri-policy can open the socket, and they may not change anything"
)
_OTHER_VERSION = "the daemon has another version; use the program that runs as the daemon"
_BUSY = "its log may say more"
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]


class UnreachableError(Exception):
    """No daemon answers at the socket; the text has the reason and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"the daemon cannot be reached at {path}: {problem}; {remedy}")


class DeclinedError(Exception):
    """The daemon refused the request; the text has the reason."""

    def __init__(self, reason: str, *, invalid: bool) -> None:
        super().__init__(reason)
        self.invalid = invalid  # whether the request itself makes no sense


class ControlClient:
    """A connection to the daemon.

    Methods raise UnreachableError or DeclinedError.
    """

    def __init__(self, channel: grpc.Channel, path: Path, patience: float) -> None:
        """Ask over *channel*, waiting *patience* seconds for each answer."""
        services = pb.DESCRIPTOR.services_by_name
        self._stub = service_stub(channel, services["Control"])
        self._administration = service_stub(channel, services["Administration"])
        self._path = path
        self._patience = patience
        self._reached = False  # after a first answer, do not wait for a daemon that is gone

    def status(self) -> StatusReport:
        """Return the daemon's status."""
        return self._document(self._stub.Status, pb.StatusRequest(), StatusReport)

    def pools(self) -> tuple[OccupiedPoolReport, ...]:
        """Return the pools, by id."""
        return self._document(self._stub.Pools, pb.PoolsRequest(), tuple[OccupiedPoolReport, ...])

    def containers(self, *, usage: bool = False) -> Containers:
        """Return the containers by name; with *usage*, also the CPU time that they have used."""
        request = pb.ContainersRequest(usage=usage)
        return self._document(self._stub.Containers, request, Containers)

    def machine(self) -> TopologyReport:
        """Return the machine and its pool tree."""
        return self._document(self._stub.Machine, pb.MachineRequest(), TopologyReport)

    def settings(self) -> SettingsReport:
        """Return the settings in force."""
        return self._document(self._stub.Settings, pb.SettingsRequest(), SettingsReport)

    def journal(self, after: int = 0, limit: int = 0, container: str = "") -> JournalPage:
        """Return a page of the journal: records after that number."""
        request = pb.JournalRequest(after=after, limit=limit, container=container)
        return self._document(self._stub.Journal, request, JournalPage)

    def explain(self, name: str) -> Explanations:
        """Return the explanation of a container, or those of a pod."""
        request = pb.ExplainRequest(name=name)
        # mypy takes no union for a type of values
        return self._document(self._stub.Explain, request, Explanations)  # type: ignore[arg-type]

    def what_if(
        self, manifests: str, replicas: int, *, most: bool = False, settings: str = ""
    ) -> WhatIfReport:
        """Return the result of creating *replicas* of each pod; 0: the number in the manifest.

        With *most*, as many as fit. *settings*, a document, apply first.
        """
        request = pb.WhatIfRequest(
            manifests=manifests, replicas=replicas, most=most, settings=settings
        )
        return self._document(self._stub.WhatIf, request, WhatIfReport)

    def audit(self) -> AuditReport:
        """Return the result of an audit."""
        return self._document(self._stub.Audit, pb.AuditRequest(), AuditReport)

    def topology(self) -> ResourceTopology:
        """Return the NodeResourceTopology object as it would be published."""
        return self._document(self._stub.Topology, pb.TopologyRequest(), ResourceTopology)

    def reload(self) -> ReloadResult:
        """Have the settings read again; return the result."""
        answer = self._ask(self._administration.Reload, pb.ReloadRequest())
        return ReloadResult(
            accepted=answer.accepted, origin=answer.origin, reason=answer.reason, time=answer.time
        )

    @contextmanager
    def watching(self) -> Iterator[Iterator[pb.Decision]]:
        """Yield an iterator of the decisions from now on; it ends with the block.

        It raises UnreachableError or DeclinedError if there will be no more.
        """
        with self._translate_errors():
            call = self._stub.Watch(pb.WatchRequest())
            call.initial_metadata()  # wait until the daemon has registered the watcher
        try:
            yield self._decisions(call)
        finally:
            call.cancel()

    def _decisions(self, call: Iterator[pb.Decision]) -> Iterator[pb.Decision]:
        with self._translate_errors():
            yield from call

    def _document(self, method: Callable[..., pb.Document], request: Any, kind: type[_T]) -> _T:
        text = self._ask(method, request).json
        with _check_version():
            return decode(text, kind)

    def _ask(self, method: Callable[..., Any], request: Any) -> Any:
        with self._translate_errors():
            answer = method(request, timeout=self._patience, wait_for_ready=not self._reached)
        self._reached = True
        return answer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise our own errors for gRPC's."""
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in _UNREACHABLE:
                raise UnreachableError(self._path, str(details), _BUSY) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise DeclinedError(_OWNERS, invalid=False) from error
            invalid = code is grpc.StatusCode.INVALID_ARGUMENT
            raise DeclinedError(str(details), invalid=invalid) from error


@contextmanager
def _check_version() -> Iterator[None]:
    """Raise DeclinedError for a document of another version."""
    try:
        yield
    except ValueError as error:
        raise DeclinedError(f"{_OTHER_VERSION}: {error}", invalid=False) from error


@contextmanager
def connected(path: Path, *, patience: float = _PATIENCE) -> Iterator[ControlClient]:
    """Yield a client of the daemon at *path*; wait *patience* for answers; UnreachableError."""
    with socket.socket(socket.AF_UNIX) as probe:  # gives a quick and clear error
        probe.settimeout(patience)
        try:
            probe.connect(str(path))
        except OSError as error:
            remedy = _ALLOWED if isinstance(error, PermissionError) else _STARTED
            raise UnreachableError(path, error.strerror or str(error), remedy) from error
    with grpc.insecure_channel(f"unix:{path.resolve()}", options=_OPTIONS) as channel:
        yield ControlClient(channel, path, patience)

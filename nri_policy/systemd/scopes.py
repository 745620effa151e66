"""Scopes: sets the CPUs and memory nodes in the properties of a container's scope.

If the runtime's cgroup driver is systemd, systemd makes a scope for each container. On cgroup v2,
systemd writes the scope's cpuset from its properties again with every `daemon-reload` and every
change of a property. So a cpuset written to the cgroup is lost then, unless it is also a property
of the scope (nri.md §3.7a rule 7).

Owns the connection to systemd. Each call uses a new one, because a manager that re-executes itself
drops all connections, and ends within `MAX_WAIT`. systemd's own socket needs no running bus and no
AppArmor rule for buses; the system bus is the fallback if only that is reachable. On both, systemd
accepts root with any capabilities, and asks polkit about other users.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.systemd.message import (
    PREFIX,
    BusMessage,
    MessageError,
    MethodCall,
    Type,
    decode,
    encode,
    encode_properties,
    length_of,
)

MAX_WAIT = 1.0  # seconds for a call
RETRY = 10.0  # seconds to wait after systemd did not answer, or refused
OWN_SOCKET = "run/systemd/private"
BUS_SOCKET = "run/dbus/system_bus_socket"

_SERIAL = 2
_HELLO = MethodCall(
    destination="org.freedesktop.DBus",
    path="/org/freedesktop/DBus",
    interface="org.freedesktop.DBus",
    member="Hello",
)
_SET = MethodCall(
    destination="org.freedesktop.systemd1",
    path="/org/freedesktop/systemd1",
    interface="org.freedesktop.systemd1.Manager",
    member="SetUnitProperties",
)
_REFUSALS = (
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    "org.freedesktop.DBus.Error.AuthFailed",
)
_UNKNOWN_PROPERTY = "org.freedesktop.DBus.Error.PropertyReadOnly"  # the error of unknown ones too


class ScopeError(Exception):
    """systemd did not set this scope's properties; the text has the reason."""


class ManagerError(ScopeError):
    """systemd sets no properties now: it is not reachable, gives no answer, or refuses."""


def cgroup_of(parent: str, id_: str, runtime: str) -> str:
    """Return the *runtime*'s name for the cgroup of a container or sandbox in the pod's *parent*.

    If systemd makes the cgroups, it is the name of a scope.
    """
    if parent.endswith(".slice"):
        prefix = "cri-containerd" if runtime == "containerd" else "crio"
        return f"{parent.rpartition('/')[2]}:{prefix}:{id_}"
    return f"{parent}/{id_}" if runtime == "containerd" else f"{parent}/crio-{id_}"


def scope_of(cgroup: str) -> str | None:
    """Return the scope's unit of the runtime's *cgroup* `SLICE:PREFIX:NAME`; else None."""
    parts = cgroup.split(":")
    return f"{parts[1]}-{parts[2]}.scope" if len(parts) == 3 else None


def socket_of(root: Path) -> Path:
    """Return systemd's own socket if the host has it, else that of the system bus."""
    own = root / OWN_SOCKET
    return own if own.is_socket() else root / BUS_SOCKET


def mask(ids: CPUSet) -> bytes:
    """Return the set in systemd's form: bit n % 8 of byte n // 8 is for n."""
    return sum(1 << each for each in ids).to_bytes(max(ids, default=-1) // 8 + 1, "little")


class Scopes:
    """The scopes of the host whose root folder is *root*."""

    def __init__(self, root: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._root = root
        self._clock = clock
        self._failed: tuple[float, ManagerError] | None = None  # do not retry until then; the error

    async def allow(self, cgroup: str, cpus: CPUSet, mems: CPUSet | None = None) -> str:
        """Set a scope's CPUs and memory nodes in systemd; return the error, or "".

        *cgroup* is the runtime's name of a cgroup v2. On v1 systemd accepts the values but ignores
        them.
        """
        scope = scope_of(cgroup)
        if scope is None:
            return f"{cgroup} is no scope of systemd"
        if self._failed is not None and self._clock.now() < self._failed[0]:
            return str(self._failed[1])
        properties = {"AllowedCPUs": mask(cpus)}
        if mems is not None:
            properties["AllowedMemoryNodes"] = mask(mems)
        try:
            await self._in_time(self._set(scope, properties))
        except ManagerError as error:
            self._failed = self._clock.now() + RETRY, error
            return str(error)
        except ScopeError as error:
            return str(error)
        self._failed = None
        return ""

    async def _in_time(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        try:
            if not await self._clock.done_within(MAX_WAIT, task):
                raise ManagerError(f"systemd did not answer within {MAX_WAIT:g} s")
            task.result()
        finally:
            task.cancel()

    async def _set(self, scope: str, properties: Mapping[str, bytes]) -> None:
        """Set properties of a unit until it stops; raises ScopeError."""
        socket = socket_of(self._root)
        call = encode(_SET, _SERIAL, "sba(sv)", encode_properties(scope, properties))
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError as error:
            raise ManagerError(f"{socket}: {error.strerror or error}") from error
        try:
            user = str(os.geteuid()).encode().hex()
            writer.write(f"\0AUTH EXTERNAL {user}\r\n".encode())
            line = await reader.readuntil(b"\r\n")
            if not line.startswith(b"OK "):
                raise ManagerError(f"{socket} accepts no user {os.geteuid()}: {line[:80]!r}")
            hello = encode(_HELLO, _SERIAL - 1) if socket.match(BUS_SOCKET) else b""
            writer.write(b"BEGIN\r\n" + hello + call)
            await _await_answer(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ManagerError(f"{socket}: the connection ended without an answer") from error
        except (MessageError, asyncio.LimitOverrunError) as error:
            raise ManagerError(f"{socket}: not understood: {error}") from error
        finally:
            writer.close()


async def _await_answer(reader: asyncio.StreamReader) -> None:
    """Wait for the answer of the call; raises ScopeError, MessageError."""
    while True:
        prefix = await reader.readexactly(PREFIX)
        rest = await reader.readexactly(length_of(prefix) - PREFIX)
        message = decode(prefix + rest)
        if message.type == Type.ERROR:
            raise _error_of(message)
        if message.type == Type.ANSWER and message.reply_to == _SERIAL:
            return


def _error_of(message: BusMessage) -> ScopeError:
    if message.error in _REFUSALS:
        return ManagerError(f"systemd refuses it: {message.text or message.error}")
    if message.error == _UNKNOWN_PROPERTY and "AllowedCPUs" in message.text:
        return ManagerError("this systemd knows no AllowedCPUs: it is older than version 244")
    return ScopeError(f"systemd: {message.text or message.error}")

"""A fake of systemd on cgroup v2: it owns the scopes of containers, and their cpusets.

A scope has the cpuset that was set last through systemd, by the runtime or by the daemon. systemd
writes it to the cgroup again whenever it has a reason to, and so undoes what was only written
(spec nri.md §3.7a 7). It speaks D-Bus on the socket where the daemon looks for it: what it answers
was recorded (`tests/unit/systemd/data`). The seed chooses how, and for how long.

| rule | held against |
|---|---|
| any property that is set undoes what was only written | `inside/test_systemd.py::test_what_was_only_written_is_undone` |
| a reload, a new execution and other properties leave what was set | `::test_what_systemd_was_told_lasts` |
| an update of the runtime sets the property, too | `::test_an_owners_cpus_and_a_resize_last` |
| it writes soon after its answer, and over a newer write | `inside/scene.py`, `settle` |
| no scope, no access: the answers | `unit/systemd/test_scopes.py`, of systemd 252 |
| it handles one message after the other, also of those that wait no longer | nothing: assumed |
| a scope that is set has others written now and then, as if it needed a controller | nothing: assumed |
| a scope whose cpuset nobody has set keeps its CPUs: the kernel refuses no CPUs | `cpusets.py` |
"""  # noqa: E501 - names of tests

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.systemd.message import PREFIX, decode, length_of
from nri_policy.systemd.scopes import BUS_SOCKET, OWN_SOCKET, scope_of
from tests.unit.systemd.bus import recorded

PARTY = "systemd"
STEP, SLOW_STEP = 0.002, 0.05  # seconds between an answer and its writes; of one in ten
RELOADS = 1.0  # seconds that a reload takes, at most: it answers nobody meanwhile
OTHERS = 0.2  # how often a scope that is set has others written, too
_SET = b"\0SetUnitProperties\0"
_CPUS = b"\0AllowedCPUs\0\x02ay\0"


class Manner(Struct, frozen=True, kw_only=True):
    """How a systemd can be asked."""

    name: str
    socket: str = OWN_SOCKET
    answered: str = ""  # recorded; empty: nobody listens
    gone: str = ""

    @property
    def keeps(self) -> bool:
        """Whether it stores the properties that it is sent."""
        return self.answered.endswith("answered")


_OWN = Manner(name="systemd", answered="own-answered", gone="own-gone")
_BUS = Manner(name="systemd's bus", socket=BUS_SOCKET, answered="bus-answered", gone="bus-gone")
_REFUSING = Manner(
    name="a systemd that refuses", socket=BUS_SOCKET, answered="bus-refused", gone="bus-refused"
)
_SILENT = Manner(name="a systemd that cannot be asked")
_MANNERS = (_OWN, _OWN, _OWN, _OWN, _BUS, _REFUSING, _SILENT)


class Systemd:
    """systemd of one node, in a loop."""

    def __init__(
        self,
        root: Path,
        runtime: EmbeddedRuntime,
        random: Random,
        undid: Callable[[SimulatedContainer], None],
        endangers: Callable[[SimulatedContainer], bool],
    ) -> None:
        """*undid* is called when what was written to a container's cgroup is undone.

        It writes to no container that *endangers* a partition: the kernel may lose its CPUs.
        """
        self._undid = undid
        self._endangers = endangers
        self._root = root
        self._runtime = runtime
        self._random = random
        self.manner = random.choice(_MANNERS)
        self._set: dict[str, CPUSet] = {}  # by the id of the container
        self._turn = asyncio.Lock()  # it is one thread
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}  # in their order
        self.asked = Counter[str]()  # calls so far that were done, by the id of the container
        runtime.cgroup_set = self._set_by_runtime

    def kept(self, container: SimulatedContainer) -> CPUSet | None:
        """Return the CPUs that a container's scope has been set to; None if to none."""
        return self._set.get(container.id)

    # ---- its life

    async def listen(self) -> None:
        """Be there to be asked."""
        if self.manner.answered:
            path = self._root / self.manner.socket
            path.parent.mkdir(parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, path)

    async def hang_up(self) -> None:
        """End all connections, and be there no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
            (self._root / self.manner.socket).unlink()
        for each in [*self._connections]:
            each.transport.abort()

    # ---- what it is asked for

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = None
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other waits no longer
        finally:
            del self._connections[writer]
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        accepts, _ = recorded(self.manner.answered)
        writer.write(accepts)
        await reader.readuntil(b"BEGIN\r\n")
        call = b""
        while _SET not in call:  # on the bus a greeting comes before
            prefix = await reader.readexactly(PREFIX)
            call = prefix + await reader.readexactly(length_of(prefix) - PREFIX)
        async with self._turn:
            await self._pause()
            container = self._find(decode(call).text)
            _, answer = recorded(self.manner.answered if container else self.manner.gone)
            if not writer.is_closing():
                writer.write(answer)
            if container is not None and self.manner.keeps:
                self.asked[container.id] += 1
                self._set[container.id] = _cpus_of(call)
                await self._pause()  # it sets properties when it has answered
                self._write(container)

    def _find(self, unit: str) -> SimulatedContainer | None:
        return next((each for each in self._scopes() if _unit_of(each) == unit), None)

    def _scopes(self) -> Iterator[SimulatedContainer]:
        return (each for each in self._runtime.containers if each.in_force is not None)

    async def _pause(self) -> None:
        slow = self._random.random() < 0.1
        await asyncio.sleep(self._random.uniform(0, SLOW_STEP if slow else STEP))

    # ---- what the runtime has it do

    def _set_by_runtime(self, container: SimulatedContainer) -> None:
        """Make a scope, or set its properties; without CPUs among them it keeps those it has."""
        assert container.in_force is not None
        if container.in_force.cpu.cpus:
            self._set[container.id] = container.cpus
        else:
            self._write(container)
        if self._random.random() < OTHERS:
            for each in self._scopes():
                if each is not container:
                    self._write(each)

    # ---- what it does by itself

    async def reload(self) -> None:
        """Read all units again, and write what belongs to them."""
        async with self._turn:
            await asyncio.sleep(self._random.uniform(0, RELOADS))
            for each in [*self._scopes()]:
                self._write(each)

    async def execute_again(self, seconds: float) -> None:
        """Execute itself anew, which takes so long: all connections end."""
        await self.hang_up()
        await asyncio.sleep(seconds)
        await self.reload()
        await self.listen()

    async def set_other(self, some: Collection[SimulatedContainer]) -> None:
        """Set properties other than the cpuset."""
        async with self._turn:
            for each in some:
                await self._pause()
                self._write(each)

    def _write(self, container: SimulatedContainer) -> None:
        """Write what a scope has been set to."""
        online = self._runtime.machine.online_cpus
        due = self._set.get(container.id)
        if due is None or container.in_force is None:
            return
        here = due & online or online
        if container.cpus != here and not self._endangers(container):
            container.write_cpus(here, cause="systemd")
            self._undid(container)


def _unit_of(container: SimulatedContainer) -> str | None:
    return scope_of(container.message.linux.cgroups_path)


def _cpus_of(call: bytes) -> CPUSet:
    """Return the CPUs in a call that sets them."""
    at = call.index(_CPUS) + len(_CPUS)
    at += -at % 4
    (length,) = struct.unpack_from("<I", call, at)
    mask = int.from_bytes(call[at + 4 : at + 4 + length], "little")
    return CPUSet(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)

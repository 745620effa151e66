"""Hotplug: detects changes of the machine.

Owns when the machine is read again, and accepts only a machine that did not change while it was
read. The kernel reports CPUs, memory blocks, memory nodes and PCI functions that come and go, over
netlink. Without libudev, or within a user namespace, no report arrives, and some changes have none
(memory balloons, huge pages). So a few cheap files are read periodically, too. Discovery reads the
machine itself.

Network interfaces are not watched, and disks only for their limits of I/O: the hardware behind one
is looked up at each use, down to the PCI function, and PCI functions are watched.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import problem_of
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree, Folder, TopologyError

log = logging.getLogger(__name__)

QUIET = 0.5  # seconds without reports end a change: a memory module comes as hundreds of blocks
MOST_QUIETS = 20  # the machine is read after so many, even while the change goes on
PERIOD = 30.0  # seconds between reads of the files while the kernel's reports arrive
PERIOD_UNHEARD = 5.0  # and while they do not
AGAIN = 2.0  # seconds between tries to read the machine

_SUBSYSTEMS = ("cpu", "memory", "node", "pci", "dax")
_ACTIONS = ("add", "remove", "online", "offline")
_MOST_LISTED = 8  # addresses in a line of the log
_TOTAL = re.compile(r"MemTotal:\s*(\d+)")

Notify = Callable[[], None]
Listen = Callable[[Notify], AbstractContextManager[bool]]
Glance = tuple[object, ...]


def uevents_of(subsystems: Collection[str], actions: Collection[str] = _ACTIONS) -> Listen:
    """Return what calls its argument whenever the kernel has news; `uevents`."""
    return partial(_uevents, subsystems, actions)


@contextmanager
def _uevents(
    subsystems: Collection[str], actions: Collection[str], notify: Notify
) -> Iterator[bool]:
    """Call *notify* on the running loop when the kernel has news; yield whether it can be heard.

    These are the kernel's own events, not udev's: a container, or a small node, has no udev.
    """
    try:
        import pyudev  # noqa: PLC0415 - it loads libudev, which is not everywhere

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
    except (ImportError, OSError) as error:
        log.info(
            "no-kernel-events",
            extra={
                "reason": problem_of(error),
                "text": f"checking every {PERIOD_UNHEARD:g} s instead",
            },
        )
        yield False
        return

    def drain() -> None:
        try:
            while (device := monitor.poll(0)) is not None:
                if device.action in actions:
                    notify()
        except OSError:  # ENOBUFS: there was more than the socket holds
            notify()

    loop = asyncio.get_running_loop()
    loop.add_reader(monitor.fileno(), drain)
    try:
        yield True
    finally:
        loop.remove_reader(monitor.fileno())


uevents = uevents_of(_SUBSYSTEMS)


class Hotplug:
    """Watches the machine below *root*, which *read* reads; both off the loop's thread."""

    def __init__(
        self,
        root: Path,
        read: Callable[[], Machine],
        *,
        listen: Listen = uevents,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._root = root
        self._read = read
        self._listen = listen
        self._clock = clock

    async def run(
        self,
        known: Callable[[], Machine],
        changed: Callable[[Machine, Machine], Awaitable[object]],
    ) -> None:
        """Await *changed* with the machine *known* and the one that there is, where they differ.

        Others may replace what is known, too: then it is compared at the next look, for they may
        have read it before a change, or *changed* may have left it alone.
        A machine that cannot be read leaves the last one in force, and is read again. Never ends.
        """
        notified = asyncio.Event()
        with self._listen(notified.set) as heard:
            pause = usual = PERIOD if heard else PERIOD_UNHEARD
            seen: Glance | None = None  # of when `compared` was read
            compared: Machine | None = None
            trouble = ""
            while True:
                await self._clock.set_within(pause, notified)
                news = notified.is_set()
                if news:
                    await self._quiet(notified)
                try:
                    glance = await asyncio.to_thread(_glance, self._root)
                    if glance == seen and not news and known() is compared:
                        continue
                    before = known()
                    machine = await self._whole(glance)
                except TopologyError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        log.warning(
                            "hardware-unreadable",
                            extra={"reason": trouble, "text": "the earlier state is used"},
                        )
                    seen, pause = None, AGAIN
                    continue
                seen, pause, trouble = glance, usual, ""
                compared = before
                if machine != before:
                    _announce(before, machine)
                    compared = machine
                    await changed(before, machine)

    async def _whole(self, glance: Glance) -> Machine:
        """Return the machine; TopologyError if it cannot be read, or changed meanwhile."""
        machine = await asyncio.to_thread(self._read)
        if await asyncio.to_thread(_glance, self._root) != glance:
            raise TopologyError(self._root, "it changed while it was read")
        return machine

    async def _quiet(self, notified: asyncio.Event) -> None:
        """Wait until the news end."""
        for _ in range(MOST_QUIETS):
            notified.clear()
            await self._clock.sleep(QUIET)
            if not notified.is_set():
                return
        notified.clear()


def _glance(root: Path) -> Glance:
    """Return what shows most changes of a machine for the price of few files."""
    with FileTree(root, Notes()) as tree:
        with tree.folder("sys/devices/system/cpu") as cpus:
            online = cpus.text("online")
        with tree.folder("sys/devices/system/node") as nodes:
            sets = [nodes.text(name) for name in ("online", "has_memory", "has_normal_memory")]
            memory = [*_memory(nodes)]
        with tree.folder("proc") as proc:  # all there is of a kernel without NUMA
            total = _TOTAL.search(proc.text("meminfo") or "")
        devices = []
        for bus in ("pci", "dax"):
            with tree.folder(f"sys/bus/{bus}/devices") as folder:
                devices.append(folder.names())
    return online, sets, memory, total and total[1], devices


def _memory(nodes: Folder) -> Iterator[tuple[int, object, object]]:
    """Yield id, memory and huge pages of each node."""
    for id_ in nodes.numbered("node"):
        with nodes.folder(f"node{id_}") as node:
            total = _TOTAL.search(node.text("meminfo") or "")
            pages = []
            with node.folder("hugepages") as sizes:
                for size in sizes.names():
                    with sizes.folder(size) as pool:
                        pages.append((size, pool.text("nr_hugepages")))
            yield id_, total and total[1], pages


def _announce(old: Machine, new: Machine) -> None:
    before, after = ({device.address for device in each.devices} for each in (old, new))
    log.warning(
        "hardware-changed",
        extra={
            "cpus": new.online,
            "nodes": CPUSet(node.id for node in new.nodes),
            "memory": format_bytes(new.memory),
            "gone": _format_list(before - after),
            "new": _format_list(after - before),
        },
    )


def _format_list(addresses: Collection[str]) -> str:
    few = sorted(addresses)[:_MOST_LISTED]
    more = len(addresses) - len(few)
    return ",".join([*few, *([f"and {more} more"] if more else [])]) or "none"

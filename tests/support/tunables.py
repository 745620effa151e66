"""Kernel files of tunables in a folder, as strict as the kernel's (spec classes.md §3)."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.tuning.decision import ReadFailure
from nri_policy.tuning.files import Files, KernelFiles
from nri_policy.tuning.items import Desired, Item, Kind
from nri_policy.tuning.protocol import Reply, TunerError
from nri_policy.tuning.server import listening, reply_to, serve
from nri_policy.tuning.tuner import Tuner
from nri_policy.tuning.tuner_journal import TunerJournal
from tests.support.daemon import Served, served
from tests.support.patience import HANGS

BOOT = "0f3f1c0e-boot-1"


def irq(number: int | str) -> Item:
    """Return the item of an interrupt's affinity."""
    return Item(Kind.IRQ, str(number), "affinity")


def make_host(root: Path, affinities: dict[int, str], *, cpus: int = 4, boot: str = BOOT) -> Path:
    """Make a host's /proc with interrupts; return its root."""
    for number, cpus_text in affinities.items():
        folder = root / "proc/irq" / str(number)
        folder.mkdir(parents=True)
        (folder / "smp_affinity_list").write_text(f"{cpus_text}\n")
    (root / "proc/irq").mkdir(parents=True, exist_ok=True)
    groups = [f"{(1 << min(32, cpus - n)) - 1:08x}" for n in range(0, cpus, 32)]
    (root / "proc/irq/default_smp_affinity").write_text(",".join(groups[::-1]) + "\n")
    set_boot(root, boot)
    return root


def set_boot(root: Path, boot: str) -> None:
    """Set the id of the host's boot."""
    path = root / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{boot}\n")


class StrictFiles(KernelFiles):
    """The files of `make_host` with the kernel's refusals; `managed` interrupts cannot be moved."""

    def __init__(
        self,
        root: Path,
        *,
        online: str = "0-3",
        managed: Iterable[int] = (),
        before: Callable[[Item, str], None] = lambda *_: None,
        after: Callable[[Item, str], None] = lambda *_: None,
    ) -> None:
        super().__init__(root)
        self._online = CPUSet.parse(online)
        self._managed = {str(each) for each in managed}
        self.before, self.after = before, after
        self.writes: list[tuple[str, str]] = []

    def write(self, item: Item, value: str) -> None:
        self.before(item, value)
        if item.kind is not Kind.IRQ:
            super().write(item, value)
            return
        cpus = CPUSet.parse(value)
        if item.id in self._managed:
            raise OSError(errno.EPERM, "Operation not permitted")
        if item.id != "default" and not cpus & self._online:
            raise OSError(errno.EINVAL, "Invalid argument")
        if isinstance(self.read(item), ReadFailure):
            raise OSError(errno.ENOENT, "No such file or directory")
        super().write(item, f"{value}")
        if item.id == "default":
            assert CPUSet.from_mask(self.text(item)) == cpus
        self.writes.append((item.id, value))
        self.after(item, value)

    def text(self, item: Item) -> str:
        """Return a file's own text."""
        return self._path(item).read_text()


class TunedHost:
    """A host with a tuner that a daemon asks directly."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder, self.files = folder, files
        self.time = 0.0  # the tuner's
        self.away = False  # whether no tuner runs
        self.start_tuner()

    def start_tuner(self) -> None:
        """Start the tuner, or start it again: all that it knows is in its journal."""
        folder = self.folder / "tuner"
        folder.mkdir(exist_ok=True)
        journal = TunerJournal(folder, BOOT)
        self.tuner = Tuner(
            self.files, journal, clock=Clock(now=lambda: self.time, date=lambda: 0.0)
        )

    def ask(
        self, desired: Desired | None = None, *, repair: bool = False, whole: bool = False
    ) -> Reply:
        """Answer the daemon; TunerError."""
        if self.away:
            raise TunerError("tuner.sock: no such file")
        return reply_to(self.tuner, desired, repair=repair, whole=whole)

    def serving(self, *machine: str, **given: Any) -> AbstractAsyncContextManager[Served]:
        """Return a daemon on this host, for an `async with`."""
        return served(self.folder, *machine, ask_tuner=self.ask, **given)


@contextmanager
def answering(tuner: Tuner, path: Path) -> Iterator[None]:
    """Answer callers at *path* for the duration of a `with`."""
    with listening(path) as listener:
        thread = threading.Thread(target=_serve, args=(tuner, listener), daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()  # `accept` with a time limit only ends by both
        thread.join(HANGS)


def _serve(tuner: Tuner, listener: socket.socket) -> None:
    try:
        serve(tuner, listener)
    except OSError:
        return  # it was shut down

"""A node of the campaign: a machine in files, an embedded runtime, a disk, and a daemon to hurt."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from nri_policy.hardware.discovery import discover
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.settings import from_spec
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.faults.levers import Levers
from tests.support.patience import HANGS

ROOT = Path(__file__).parents[2]
DEADLINE = 0.5  # seconds that the runtime waits for an answer
_DISK = 4 << 20  # bytes


class Died(Exception):  # noqa: N818 - of the daemon, not of this program
    """The daemon ended by itself."""


class DaemonProcess:
    """One process of the daemon, which is not a child of ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.began = time.monotonic()
        self._pidfd = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        """Whether it is there, be it frozen."""
        return not select.select([self._pidfd], [], [], 0)[0]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def ended(self) -> None:
        """Wait for its end."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, end.set)
        try:
            async with asyncio.timeout(HANGS):
                await end.wait()
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        """Forget it."""
        os.close(self._pidfd)


class Disk:
    """The state folder: a small file system of its own where we may mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=0700", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.call(mount, stderr=subprocess.DEVNULL) == 0

    def fill(self) -> None:
        """Leave no room at all."""
        with self._filler.open("wb", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC  # noqa: PT017 - it goes on after this

    def empty(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)

    def writable(self, yes: bool) -> None:
        """Make the file system read-only, or writable; nothing may be open for writing."""
        mode = "remount,rw" if yes else "remount,ro"
        subprocess.run(["mount", "-o", mode, str(self.folder)], check=True)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


class Host:
    """The node; `serving` makes and ends it."""

    def __init__(
        self,
        folder: Path,
        machine: str,
        spec: Mapping[str, Any],
        *,
        runtime: tuple[str, str],
        plain: bool,
    ) -> None:
        self.folder = folder
        synthetic.write(machine, folder / "host")
        self.machine = discover(folder / "host")
        self.settings = from_spec(spec, "campaign")
        document = {
            "apiVersion": "config.nri/v1alpha1",
            "kind": "TopologyAwarePolicy",
            "metadata": {"name": "default"},
            "spec": spec,
        }
        (folder / "settings.yaml").write_text(json.dumps(document))  # JSON is YAML
        self.disk = Disk(folder / "state")
        self.store = folder / "state" / "store"
        self.socket = folder / "control.sock"
        self.runtime = EmbeddedRuntime(
            folder / "nri.sock",
            online_cpus=self.machine.online,
            memory_nodes=CPUSet(node.id for node in self.machine.nodes),
            name=runtime[0],
            version=runtime[1],
            kubelet=Kubelet(memory_capacity=self.machine.memory),
            timeouts=Timeouts(request=DEADLINE),
        )
        self.levers = Levers(folder / "levers")
        self.log = folder / "log"
        self.log.touch()
        self.lives = 0
        self._log_start = 0  # bytes of earlier lives
        self._process: DaemonProcess | None = None
        self._nursery = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.faults.victim",
                str(folder / "levers"),
                *["plain"] * plain,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    @property
    def process(self) -> DaemonProcess:
        """The daemon's latest process."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start a new process of the daemon."""
        if self._process is not None:
            assert not self._process.alive
            self._process.close()
        self._log_start = self.log.stat().st_size
        self._process = self.spawn()
        self.lives += 1

    def spawn(self) -> DaemonProcess:
        """Start a daemon, be there another or not."""
        options = {
            "--settings": self.folder / "settings.yaml",
            "--host-root": self.folder / "host",
            "--nri-socket": self.folder / "nri.sock",
            "--state-dir": self.folder / "state",
            "--containers-dir": self.folder / "state" / "containers",  # on the bad disk, too
            "--control-socket": self.socket,
        }
        command = ["run", *(str(part) for option in options.items() for part in option)]
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(f"{json.dumps([str(self.log), *command])}\n")
        self._nursery.stdin.flush()
        return DaemonProcess(int(self._nursery.stdout.readline()))

    async def synchronized(self, after: int) -> None:
        """Wait until the daemon takes part, after so many synchronizations."""
        waiting = asyncio.ensure_future(self.runtime.synchronized(after=after))
        try:
            async with asyncio.timeout(HANGS):
                while not (waiting.done() and self.runtime.plugins):
                    if not self.process.alive:
                        raise Died(self.tail())
                    await asyncio.wait({waiting}, timeout=0.005)
                    if waiting.done() and not self.runtime.plugins:
                        await asyncio.sleep(0.005)
        finally:
            waiting.cancel()
        await self.runtime.settled()

    def said(self) -> str:
        """Return the log of this process."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log."""
        return "\n".join(self.said().splitlines()[-lines:])

    def close(self) -> None:
        """End all that was started, and clean up."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.close()
        self.disk.close()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(HANGS)
        self._nursery.stdout.close()
        shutil.rmtree(self.folder)


@contextmanager
def host(
    folder: Path,
    machine: str,
    spec: Mapping[str, Any],
    *,
    runtime: tuple[str, str] = ("containerd", "2.1.9"),
    plain: bool = False,
) -> Iterator[Host]:
    """Yield a node in *folder*, which is made, and removed in the end.

    A *plain* daemon is as it ships: nothing in it is changed.
    """
    folder.mkdir()
    node = Host(folder, machine, spec, runtime=runtime, plain=plain)
    try:
        yield node
    finally:
        node.close()

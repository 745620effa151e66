"""A private container runtime: its own folder, sockets and cgroups, beside the system's and others.

Six runtime handlers: `runc` is the real thing; `played` is runc behind `oci_wrapper`, which
records cpusets, limits of disks and scheduling attributes instead of applying them, so that
containers can be placed on hardware that is not here; `slow` is runc that takes two seconds to
create a container, `hooked` gives it a hook that takes as long; `late` takes three to update it;
`moody` updates as `mood` says.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup, oci_hook, oci_wrapper
from tests.e2e.kubelet import Kubelet
from tests.e2e.process import Process
from tests.support.patience import HANGS

#: Seconds that a plugin has to register and to answer: more than a slow machine needs.
PATIENCE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What one call of the `played` runtime was told about a container; empty: nothing."""

    container: str
    command: str  # create, update
    cpus: str
    mems: str
    unified: dict[str, str]  # contents of the cgroup's files, by their names
    scheduler: dict[str, Any] | None  # of the first process, as config.json has it
    io_priority: dict[str, Any] | None


class Runtime(ABC):
    """One runtime, from `start` to `close`; `stop` and `start` leave the containers running."""

    #: What the name of a container's scope has before its id.
    scope: ClassVar[str]
    #: The same of a cgroup that it makes without systemd.
    prefix: ClassVar[str] = ""

    def __init__(self, runc: Path, *, systemd: bool = False) -> None:
        """By *systemd* cgroups are made by systemd, and are the whole machine's pods."""
        self.systemd = systemd
        # Unix socket addresses hold 107 bytes: the folder's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="nri-e2e-"))
        self.socket = self.folder / "runtime.sock"
        self.nri_socket = self.folder / "nri.sock"
        self.cgroup_root = "/kubepods.slice" if systemd else f"/{self.folder.name}"
        self._record = self.folder / "played.jsonl"
        self._record.touch()
        played = self.folder / "played"
        wrapper = [sys.executable, "-IS", oci_wrapper.__file__, runc, self._record]
        played.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, wrapper))} "$@"\n')
        played.chmod(0o755)
        self.handlers = {"runc": runc, "played": played}
        for handler, command, seconds in (("slow", "create", 2), ("late", "update", 3)):
            slow = self.handlers[handler] = self.folder / handler
            wait = f'case " $* " in *" {command} "*) sleep {seconds};; esac'
            slow.write_text(f'#!/bin/sh\n{wait}\nexec {shlex.quote(str(runc))} "$@"\n')
            slow.chmod(0o755)
        hooked = self.handlers["hooked"] = self.folder / "hooked"
        hook = shlex.join([sys.executable, "-IS", oci_hook.__file__])
        hooked.write_text(
            f'#!/bin/sh\ncase " $* " in *" create "*) {hook} "$@";; esac\n'
            f'exec {shlex.quote(str(runc))} "$@"\n'
        )
        hooked.chmod(0o755)
        #: What `moody` makes of updates while this file is there: `refused`, or a second `late`.
        self.mood = self.folder / "mood"
        moody = self.handlers["moody"] = self.folder / "moody"
        mood = f'case "$(cat {self.mood} 2>/dev/null)" in refused) exit 1;; late) sleep 1;; esac'
        moody.write_text(
            f'#!/bin/sh\ncase " $* " in *" update "*) {mood};; esac\n'
            f'exec {shlex.quote(str(runc))} "$@"\n'
        )
        moody.chmod(0o755)
        self._process: Process | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    def stop(self) -> None:
        """Stop the daemon alone: what watches the containers stays, and so do they."""
        if self._process is not None:
            self._process.terminate()
            self._process = None

    def kill(self) -> None:
        """End the daemon without notice; what it has begun goes on without it."""
        assert self._process is not None
        self._process.kill()
        self._process = None

    def restart(self) -> None:
        """Stop and start the daemon, under its running containers."""
        self.stop()
        self.start()

    def await_plugin(self) -> None:  # noqa: B027 - most hold creations until they ask it
        """Wait until it asks a plugin that has synchronized with it about creations."""

    @abstractmethod
    def load(self, archive: Path) -> None:
        """Import the image, and wait until CRI has heard of it."""

    def kubelet(self, handler: str, *, seconds: float = HANGS) -> Kubelet:
        """Return a kubelet whose pods all run by one of the handlers; `Kubelet`."""
        return Kubelet(
            self.socket,
            self.cgroup_root,
            handler,
            scope=self.scope if self.systemd else self.prefix,
            systemd=self.systemd,
            seconds=seconds,
        )

    def recorded(self) -> list[Recorded]:
        """Return all that the `played` runtime was told, in order."""
        return [Recorded(**json.loads(line)) for line in self._record.read_text().splitlines()]

    def played(self, container: str) -> cgroup.CpusetFiles:
        """Return the cpuset that the container of the `played` runtime has by what was recorded."""
        own = [entry for entry in self.recorded() if entry.container == container]
        return cgroup.CpusetFiles(
            cpus=CPUSet.parse(next((e.cpus for e in reversed(own) if e.cpus), "")),
            mems=CPUSet.parse(next((e.mems for e in reversed(own) if e.mems), "")),
        )

    def tail(self) -> str:
        """Return the end of the log of the present run."""
        return self._process.tail() if self._process else ""

    def close(self) -> None:
        """End all that was started here, and remove the folder and the cgroups."""
        self.stop()
        self._end_containers()
        for mount in reversed(list(_mounts_below(self.folder))):
            subprocess.run(["umount", mount], check=True)
        if left := list(_mounts_below(self.folder)):
            raise RuntimeError(f"still mounted, so not removed: {left}")
        shutil.rmtree(self.folder)

    def _end_containers(self) -> None:
        """Kill the containers and whatever watches them."""
        cgroup.sweep(self.cgroup_root)


def _mounts_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount = line.split()[4]
        if mount.startswith(f"{folder}/"):
            yield mount

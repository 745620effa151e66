"""A private containerd: its own folder, sockets and cgroups, beside the system's and each other.

Two runtime handlers: `runc` is the real thing; `played` is runc behind `oci_wrapper`, which records
cpusets instead of applying them, so that containers can be placed on hardware that is not here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nri_policy.cpuset import CPUSet
from tests.e2e import cgroup, image, oci_wrapper
from tests.e2e.packages import Programs
from tests.e2e.process import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What one call of the `played` runtime was told about a container; empty: nothing."""

    container: str
    command: str  # create, update
    cpus: str
    mems: str


class Containerd:
    """One containerd, from `start` to `close`; `stop` and `start` leave the containers running."""

    def __init__(self, programs: Programs, *, emulated: bool = False) -> None:
        """On an *emulated* machine plugins have a minute to answer, and no program many threads."""
        # Unix socket addresses hold 107 bytes: the folder's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="nri-e2e-"))
        self.socket = self.folder / "containerd.sock"
        self.nri_socket = self.folder / "nri.sock"
        self.cgroup_root = f"/{self.folder.name}"
        self._record = self.folder / "played.jsonl"
        self._record.touch()
        self._programs = programs
        self._process: Process | None = None
        played = self.folder / "played"
        wrapper = [sys.executable, "-IS", oci_wrapper.__file__, programs.runc, self._record]
        played.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, wrapper))} "$@"\n')
        played.chmod(0o755)
        self._environment = {"PATH": programs.search_path}
        if emulated:
            self._environment["GOMAXPROCS"] = "2"
        config = _config(self.folder, programs, patience=60 if emulated else 2)
        (self.folder / "config.toml").write_text(config)

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._process = Process(
            [str(self._programs.containerd), "--config", str(self.folder / "config.toml")],
            self._environment,
        )
        self._process.await_line("containerd successfully booted")

    def stop(self) -> None:
        """Stop the daemon alone: shims and containers stay."""
        if self._process is not None:
            self._process.terminate()
            self._process = None

    def restart(self) -> None:
        """Stop and start the daemon, under its running containers."""
        self.stop()
        self.start()

    def load(self, archive: Path) -> None:
        """Import the image, and wait until CRI has heard of it."""
        assert self._process is not None
        ctr = [str(self._programs.ctr), "--address", str(self.socket), "--namespace", "k8s.io"]
        load = ["images", "import", "--snapshotter", "native"]
        if self._programs.major > 1:
            load.append("--local")  # else ctr asks a service that knows no native snapshotter
        subprocess.run([*ctr, *load, str(archive)], check=True, capture_output=True)
        # CRI adopts the image when it handles the event, and marks that with a second one.
        self._process.await_line(f'ImageUpdate event name:\\"{image.NAME}\\"')

    def recorded(self) -> list[Recorded]:
        """Return all that the `played` runtime was told, in order."""
        return [Recorded(**json.loads(line)) for line in self._record.read_text().splitlines()]

    def played(self, container: str) -> cgroup.Cpuset:
        """Return the cpuset that the container of the `played` runtime has by what was recorded."""
        own = [entry for entry in self.recorded() if entry.container == container]
        return cgroup.Cpuset(
            cpus=CPUSet.parse(next((e.cpus for e in reversed(own) if e.cpus), "")),
            mems=CPUSet.parse(next((e.mems for e in reversed(own) if e.mems), "")),
        )

    def tail(self) -> str:
        """Return the end of the log of the present run."""
        return self._process.tail() if self._process else ""

    def close(self) -> None:
        """End all that was started here, and remove the folder and the cgroups."""
        self.stop()
        sockets = list(self._shim_sockets())
        cgroup.sweep(self.cgroup_root)
        cgroup.kill(self._shims())
        for socket in sockets:
            socket.unlink(missing_ok=True)
        for mount in reversed(list(_mounts_below(self.folder))):
            subprocess.run(["umount", mount], check=True)
        if left := list(_mounts_below(self.folder)):
            raise RuntimeError(f"still mounted, so not removed: {left}")
        shutil.rmtree(self.folder)

    def _shims(self) -> Iterator[int]:
        """Yield the processes that were given this containerd's own socket as their -address."""
        own = os.fsencode(self.socket)
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # gone meanwhile
                continue
            if b"-address" in arguments and own in arguments:
                yield int(entry.name)

    def _shim_sockets(self) -> Iterator[Path]:
        """Yield the shims' sockets: all instances have them in one folder outside their own."""
        # 1.7 writes the bare address, 2.x puts it into a JSON file.
        for file in self.folder.glob("state/io.containerd.runtime.v2.task/k8s.io/*/*"):
            if file.name in {"address", "bootstrap.json"}:
                for path in re.findall(r"unix://([^\"\s]+)", file.read_text()):
                    yield Path(path)


def _mounts_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount = line.split()[4]
        if mount.startswith(f"{folder}/"):
            yield mount


def _config(folder: Path, programs: Programs, *, patience: int) -> str:
    """Return the configuration: nothing outside *folder*, nothing that a small host lacks.

    *patience* is for plugins to answer, in seconds.
    """
    if programs.major == 1:
        version, cri = 2, "io.containerd.grpc.v1.cri"
        images = f"""\
[plugins."{cri}"]
sandbox_image = "{image.NAME}"
restrict_oom_score_adj = true
[plugins."{cri}".containerd]
snapshotter = "native"
"""
    else:
        version, cri = 3, "io.containerd.cri.v1.runtime"
        images = f"""\
[plugins."{cri}"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image.NAME}"
"""
    runtimes = "".join(
        f"""\
[plugins."{cri}".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}".containerd.runtimes.{name}.options]
BinaryName = "{binary}"
Root = "{folder}/runc"
SystemdCgroup = false
"""
        for name, binary in (("runc", programs.runc), ("played", folder / "played"))
    )
    return f"""\
version = {version}
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.sock.ttrpc"

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{folder}/nri.sock"
plugin_path = "{folder}/nri/plugins"
plugin_config_path = "{folder}/nri/conf.d"
plugin_request_timeout = "{patience}s"

{images}{runtimes}
[plugins."{cri}".cni]
bin_dir = "{folder}/cni/bin"
conf_dir = "{folder}/cni/net.d"
"""

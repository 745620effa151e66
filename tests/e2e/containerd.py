"""A private containerd, of any version that there are packages of."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from tests.e2e import cgroup, image
from tests.e2e.packages import Programs
from tests.e2e.process import Process
from tests.e2e.runtime import PATIENCE, Runtime


class Containerd(Runtime):
    """One containerd, with its shims."""

    scope: ClassVar[str] = "cri-containerd-"

    def __init__(
        self,
        programs: Programs,
        *,
        patience: int = PATIENCE,
        emulated: bool = False,
        systemd: bool = False,
        handler: str = "runc",
        inside: Sequence[str] = (),
    ) -> None:
        """Give plugins *patience*, in seconds; on an *emulated* machine no program many threads.

        By *systemd* it has systemd make the cgroups. Pods that name no *handler* have this one.
        What its command begins with is *inside*.
        """
        super().__init__(programs.runc, systemd=systemd)
        self._programs = programs
        self._inside = inside
        self._environment = {"PATH": programs.search_path}
        if emulated:
            self._environment["GOMAXPROCS"] = "2"
        (self.folder / "config.toml").write_text(
            _config(self, programs, patience=patience, handler=handler)
        )

    def start(self) -> None:
        """Start it and wait until it serves."""
        command = [str(self._programs.containerd), "--config", str(self.folder / "config.toml")]
        # of each event that nobody listens to, minutes later: it would push all else out of `tail`
        noise = "container event discarded"
        self._process = Process([*self._inside, *command], self._environment, noise=noise)
        self._process.await_line("containerd successfully booted")

    def load(self, archive: Path, name: str = image.NAME) -> None:
        """Import the image of that *name*, and wait until CRI has heard of it."""
        assert self._process is not None
        ctr = [str(self._programs.ctr), "--address", str(self.socket), "--namespace", "k8s.io"]
        load = ["images", "import", "--snapshotter", "native"]
        if self._programs.version >= (2, 0):
            load.append("--local")  # else ctr asks a service that knows no native snapshotter
        subprocess.run([*ctr, *load, str(archive)], check=True, capture_output=True)
        # CRI adopts the image when it handles the event, and marks that with a second one.
        self._process.await_line(f'ImageUpdate event name:\\"{name}\\"')

    def _end_containers(self) -> None:
        sockets = list(self._shim_sockets())
        super()._end_containers()
        cgroup.kill(self._shims())
        for socket in sockets:
            socket.unlink(missing_ok=True)

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


def _config(its: Containerd, programs: Programs, *, patience: int, handler: str) -> str:
    """Return the configuration: nothing outside its folder, nothing that a small host lacks.

    *patience* is for plugins to register and to answer, in seconds; *handler* that of pods which
    name none.
    """
    folder = its.folder
    if programs.version < (2, 0):
        version, cri = 2, "io.containerd.grpc.v1.cri"
        images = f"""\
[plugins."{cri}"]
sandbox_image = "{image.NAME}"
restrict_oom_score_adj = true
[plugins."{cri}".containerd]
snapshotter = "native"
default_runtime_name = "{handler}"
"""
    else:
        version, cri = 3, "io.containerd.cri.v1.runtime"
        images = f"""\
[plugins."{cri}"]
restrict_oom_score_adj = true
[plugins."{cri}".containerd]
default_runtime_name = "{handler}"
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
SystemdCgroup = {str(its.systemd).lower()}
"""
        for name, binary in its.handlers.items()
    )
    # containerd 2.4 knows the former no more
    plugins = f'bin_dir = "{folder}/cni/bin"'
    if programs.version >= (2, 2):
        plugins = f'bin_dirs = ["{folder}/cni/bin"]'
    return f"""\
version = {version}
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{its.socket}"
[ttrpc]
address = "{its.socket}.ttrpc"

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{its.nri_socket}"
plugin_path = "{folder}/nri/plugins"
plugin_config_path = "{folder}/nri/conf.d"
plugin_registration_timeout = "{patience}s"
plugin_request_timeout = "{patience}s"

{images}{runtimes}
[plugins."{cri}".cni]
{plugins}
conf_dir = "{folder}/cni/net.d"
"""

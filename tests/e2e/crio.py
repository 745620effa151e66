"""A private CRI-O, where its programs are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from tests.e2e import image, registry
from tests.e2e.packages import CrioPrograms
from tests.e2e.process import Process
from tests.e2e.runtime import PATIENCE, Runtime


class Crio(Runtime):
    """One CRI-O, with a conmon for each container."""

    scope: ClassVar[str] = "crio-"
    prefix: ClassVar[str] = "crio-"

    def __init__(
        self,
        programs: CrioPrograms,
        *,
        patience: int = PATIENCE,
        emulated: bool = False,
        systemd: bool = False,
    ) -> None:
        """Give plugins *patience*, in seconds; on an *emulated* machine it has few threads.

        By *systemd* it has systemd make the cgroups.
        """
        super().__init__(programs.runc, systemd=systemd)
        self._programs = programs
        self._environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if emulated:
            self._environment["GOMAXPROCS"] = "2"
        self._registries = self.folder / "registries.conf"
        self._registries.touch()
        (self.folder / "crio.conf").write_text(_config(self, programs, patience))
        accepted = {"default": [{"type": "insecureAcceptAnything"}]}
        (self.folder / "policy.json").write_text(json.dumps(accepted))

    def start(self) -> None:
        """Start it and wait until it serves."""
        options = {
            "--config": self.folder / "crio.conf",
            "--config-dir": "",
            "--registries-conf": self._registries,
        }
        command = [str(part) for option in options.items() for part in option]
        self._process = Process([str(self._programs.crio), *command], self._environment)
        self._process.await_line("runtime interface starting up")

    def await_plugin(self) -> None:
        """Wait until it asks a plugin that has synchronized with it about creations."""
        assert self._process is not None
        self._process.await_line("connected and synchronized")

    def load(self, archive: Path) -> None:
        """Import the image."""
        with registry.serving(archive) as port:
            prefix, location = image.NAME.partition("/")[0], f"127.0.0.1:{port}"
            self._registries.write_text(
                f'[[registry]]\nprefix = "{prefix}"\nlocation = "{location}"\ninsecure = true\n'
            )
            self.restart()  # it reads that when it starts
            kubelet = self.kubelet("runc")
            kubelet.pull()
            kubelet.close()


def _config(its: Crio, programs: CrioPrograms, patience: int) -> str:
    """Return the configuration: nothing outside its folder, nothing that a small host lacks."""
    folder = its.folder
    handlers = "".join(
        f"""\
[crio.runtime.runtimes.{name}]
runtime_path = "{binary}"
runtime_type = "oci"
runtime_root = "{folder}/runc"
monitor_path = "{programs.conmon}"
monitor_cgroup = "pod"
"""
        for name, binary in its.handlers.items()
    )
    return f"""\
[crio]
root = "{folder}/root"
runroot = "{folder}/run"
storage_driver = "vfs"
log_dir = "{folder}/log"
version_file = "{folder}/version"
internal_wipe = false
clean_shutdown_file = "{folder}/clean.shutdown"
[crio.api]
listen = "{its.socket}"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "{"systemd" if its.systemd else "cgroupfs"}"
apparmor_profile = "unconfined"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
namespaces_dir = "{folder}/ns"
pinns_path = "{programs.pinns}"
hooks_dir = []
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
{handlers}
[crio.image]
pause_image = "{image.NAME}"
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"
[crio.network]
network_dir = "{folder}/cni/net.d"
plugin_dirs = ["{folder}/cni/bin"]
[crio.nri]
enable_nri = true
nri_listen = "{its.nri_socket}"
nri_plugin_dir = "{folder}/nri/plugins"
nri_plugin_config_dir = "{folder}/nri/conf.d"
nri_plugin_registration_timeout = "{patience}s"
nri_plugin_request_timeout = "{patience}s"
"""

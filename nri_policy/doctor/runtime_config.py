"""What the configuration files of containerd and CRI-O say about NRI, CDI and cgroups.

containerd: the file, and the files that it imports, each of which comes before what was read until
then: key by key from configuration version 3 on, plugin by plugin before. CRI-O: the file, and the
drop-ins of its folder in the order of their names.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import Process, find_named
from nri_policy.foundation.units import parse_duration
from nri_policy.nri.versions import DEFAULT_REGISTRATION_TIMEOUT_MS, DEFAULT_REQUEST_TIMEOUT_MS

CONTAINERD = "/etc/containerd/config.toml"
CRIO = "/etc/crio/crio.conf"
_CRIO_DROP_INS = "/etc/crio/crio.conf.d"
_GRPC = "io.containerd.server.v1.grpc"  # from configuration version 4 on
_NRI = "io.containerd.nri.v1.nri"
_CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")  # of version 3, and before
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # of both, where they do not say
_MOST_FILES = 100  # imports may go round in circles, or far

_Table = dict[str, Any]


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """A container runtime's configuration; None for settings its files omit."""

    name: str  # as the runtime calls itself
    files: tuple[str, ...] = ()  # that were read
    broken: tuple[str, ...] = ()  # what is wrong with others
    process: int | None = None  # None where it does not run
    version: int | None = None  # of the format: 3 is containerd 2's
    nri: bool | None = None  # whether it is on
    external: bool = True  # whether plugins may connect that the runtime has not started
    nri_socket: str = "/var/run/nri/nri.sock"
    plugin_folder: str = "/opt/nri/plugins"
    registration_timeout_ms: int = DEFAULT_REGISTRATION_TIMEOUT_MS
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    cri_socket: str = "/run/containerd/containerd.sock"
    systemd_cgroups: bool | None = None
    cdi: bool | None = None  # whether containers get devices by CDI
    cdi_folders: tuple[str, ...] = CDI_FOLDERS

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.process is not None


def runtime_configs(host: Host, processes: Sequence[Process]) -> tuple[RuntimeConfig, ...]:
    """Return the runtimes of a host that run, or else those that have a configuration."""
    running = [
        *(_containerd(host, process) for process in find_named(processes, "containerd")),
        *(_crio(host, process) for process in find_named(processes, "crio")),
    ]
    if running:
        return tuple(running)
    found = []
    if host.has(CONTAINERD):
        found.append(_containerd(host, None))
    if host.has(CRIO) or host.names(_CRIO_DROP_INS):
        found.append(_crio(host, None))
    return tuple(found)


def _containerd(host: Host, process: Process | None) -> RuntimeConfig:
    start = (process and process.option("--config", "-c")) or CONTAINERD
    reading = _Reading(host)
    whole = reading.with_imports(start)
    plugins = _map(whole, "plugins")
    nri = _map(plugins, _NRI)
    disabled = nri.get("disable")
    listed = whole.get("disabled_plugins")
    if isinstance(listed, list) and _NRI in listed:
        disabled = True
    cri: _Table = next((plugins[name] for name in _CRI if isinstance(plugins.get(name), dict)), {})
    engine = _map(cri, "containerd")
    default = engine.get("default_runtime_name", "runc")
    options = _map(_map(engine, "runtimes", str(default)), "options")
    systemd = options.get("SystemdCgroup", False if reading.files else None)
    version = whole.get("version")
    address = (
        (process and process.option("--address", "-a"))
        or _map(plugins, _GRPC).get("address")
        or _map(whole, "grpc").get("address")
    )
    return RuntimeConfig(
        name="containerd",
        files=tuple(reading.files),
        broken=tuple(reading.broken),
        process=process.id if process else None,
        version=version if isinstance(version, int) else None,
        nri=None if disabled is None else disabled is not True,
        external=nri.get("disable_connections") is not True,
        nri_socket=_text(nri.get("socket_path"), "/var/run/nri/nri.sock"),
        plugin_folder=_text(nri.get("plugin_path"), "/opt/nri/plugins"),
        registration_timeout_ms=_milliseconds(
            nri.get("plugin_registration_timeout"), DEFAULT_REGISTRATION_TIMEOUT_MS
        ),
        request_timeout_ms=_milliseconds(
            nri.get("plugin_request_timeout"), DEFAULT_REQUEST_TIMEOUT_MS
        ),
        cri_socket=_text(address, "/run/containerd/containerd.sock"),
        systemd_cgroups=systemd if isinstance(systemd, bool) else None,
        cdi=cri["enable_cdi"] if isinstance(cri.get("enable_cdi"), bool) else None,
        cdi_folders=_texts(cri.get("cdi_spec_dirs"), CDI_FOLDERS),
    )


def _crio(host: Host, process: Process | None) -> RuntimeConfig:
    reading = _Reading(host)
    start = (process and process.option("--config", "-c")) or CRIO
    folder = (process and process.option("--config-dir", "-d")) or _CRIO_DROP_INS
    whole: _Table = {}
    for file in (start, *(f"{folder}/{name}" for name in host.names(folder))):
        whole = _merge(whole, reading.table(file), deep=True)
    crio = _map(whole, "crio")
    nri = _map(crio, "nri")
    on = nri.get("enable_nri")
    cgroups = _map(crio, "runtime").get("cgroup_manager", "systemd")
    return RuntimeConfig(
        name="cri-o",
        files=tuple(reading.files),
        broken=tuple(reading.broken),
        process=process.id if process else None,
        nri=on if isinstance(on, bool) else None,
        external=nri.get("nri_disable_connections") is not True,
        nri_socket=_text(nri.get("nri_listen"), "/var/run/nri/nri.sock"),
        plugin_folder=_text(nri.get("nri_plugin_dir"), "/opt/nri/plugins"),
        registration_timeout_ms=_milliseconds(
            nri.get("nri_plugin_registration_timeout"), DEFAULT_REGISTRATION_TIMEOUT_MS
        ),
        request_timeout_ms=_milliseconds(
            nri.get("nri_plugin_request_timeout"), DEFAULT_REQUEST_TIMEOUT_MS
        ),
        cri_socket=_text(_map(crio, "api").get("listen"), "/var/run/crio/crio.sock"),
        systemd_cgroups=cgroups == "systemd" if reading.files else None,
        cdi=True,  # it knows no other way
        cdi_folders=_texts(_map(crio, "runtime").get("cdi_spec_dirs"), CDI_FOLDERS),
    )


class _Reading:
    """Configuration files read so far, and errors of unreadable ones."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.files: list[str] = []
        self.broken: list[str] = []

    def table(self, file: str) -> _Table:
        """Return a file's content, empty where there is none that can be read."""
        text = self._host.read(file)
        if text is None:
            if self._host.has(file):
                self.broken.append(f"{file} cannot be read")
            return {}
        try:
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            self.broken.append(f"{file}: {error}")
            return {}
        self.files.append(file)
        return {key.lower(): value for key, value in content.items()}  # as both runtimes do

    def with_imports(self, start: str) -> _Table:
        """Return a containerd configuration with all that it imports."""
        whole: _Table = {}
        pending, seen = [start], set[str]()
        while pending and len(seen) < _MOST_FILES:
            file = pending.pop(0)
            if file in seen:
                continue
            seen.add(file)
            table = self.table(file)
            # the first file's version is that of the format, and of the rules
            version = whole.get("version", table.get("version"))
            whole = _merge(whole, table, deep=isinstance(version, int) and version >= 3)
            whole["version"] = version
            pending += self._imports(file, table)
        return whole

    def _imports(self, file: str, table: _Table) -> Iterator[str]:
        imports = table.get("imports")
        for each in imports if isinstance(imports, list) else []:
            path = posixpath.join(posixpath.dirname(file), posixpath.normpath(str(each)))
            if "*" in path:
                yield from self._host.matching(path)
            else:
                yield path


def _merge(below: _Table, above: _Table, *, deep: bool) -> _Table:
    """Return two configurations in one: *above* wins; plugins by key, or else as a whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = (
                {**old, **value} if key == "plugins" and not deep else _merge(old, value, deep=deep)
            )
        elif isinstance(old, list) and isinstance(value, list):
            merged[key] = [*old, *value]
        else:
            merged[key] = value
    return merged


def _map(value: Mapping[str, Any], *keys: str) -> _Table:
    """Return the table below *keys*, empty where there is none."""
    for key in keys:
        inner = value.get(key)
        value = inner if isinstance(inner, dict) else {}
    return dict(value)


def _text(value: object, default: str) -> str:
    return value if isinstance(value, str) and value else default


def _texts(value: object, default: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else default


def _milliseconds(value: object, default: int) -> int:
    """Return a Go duration such as 2s or 500ms; the *default* for a text that is none."""
    try:
        return round(parse_duration(value) * 1000) or default
    except ValueError:
        return default

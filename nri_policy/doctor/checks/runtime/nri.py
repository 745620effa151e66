"""Whether NRI is enabled, and the runtime listens where the daemon will call."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.runtime_config import RuntimeConfig
from nri_policy.doctor.sockets import Socket, socket_path
from nri_policy.nri.versions import Runtime, Version
from nri_policy.report import StatusReport

_ON_SINCE = {"containerd": Version(2, 0, 0), "cri-o": Version(1, 30, 0)}
_ENABLE = {
    "containerd": "install configs/containerd/nri.toml as its comment says, and restart containerd",
    "cri-o": "install configs/crio/10-nri.conf as its comment says, and restart CRI-O",
}
_SHORT_MS = 1000  # a request timeout below this leaves no room for a busy node


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what stands between the daemon and the runtime."""
    config = facts.runtimes.config
    if config is None:
        found = f"no containerd or CRI-O found below {facts.where.host_root}"
        yield Finding("nri", Verdict.NOTE, f"{found}: its configuration is not checked")
    else:
        for broken in config.broken:
            remedy = f"correct the file: {config.name} does not start with it, or ignores it"
            yield Finding("nri", Verdict.WARNING, broken, remedy)
        yield from _check_config(facts, config)
    yield from _socket(facts)


def _check_config(facts: Facts, config: RuntimeConfig) -> Iterator[Finding]:
    on = is_on(config, facts.talker)
    files = ", ".join(config.files) or "any file"
    if on is False:
        why = f"{files} says so" if config.nri is False else "which is the default of this version"
        yield Finding("nri", Verdict.ERROR, f"NRI is disabled, {why}", _ENABLE[config.name])
        return
    if on is None:
        names = " and ".join(config.files) or "no file"
        says = {0: "says", 1: "does not say"}.get(len(config.files), "do not say")
        found = f"{names} below {facts.where.host_root} {says} whether NRI is enabled"
        yield Finding("nri", Verdict.NOTE, found)
    if not config.external:
        found = f"{config.name} does not let plugins connect (disable_connections)"
        yield Finding("nri", Verdict.ERROR, found, "allow it, or have the runtime start nri-policy")
    if _is_elsewhere(facts, config):
        found = f"{config.name}'s NRI socket is {config.nri_socket}, but the daemon would use"
        found += f" {facts.where.nri_socket}"
        yield Finding(
            "nri", Verdict.ERROR, found, f"start it with --nri-socket {config.nri_socket}"
        )
    seconds = f"{config.registration_timeout_ms / 1000:g} s to register"
    seconds += f", {config.request_timeout_ms / 1000:g} s to answer"
    if config.request_timeout_ms < _SHORT_MS:
        remedy = "raise plugin_request_timeout to 2s: the runtime drops a plugin that answers late"
        yield Finding("nri", Verdict.WARNING, f"plugins have {seconds}", remedy)
    elif on:
        yield Finding("nri", Verdict.OK, f"NRI is enabled; plugins have {seconds}")


def is_on(config: RuntimeConfig, runtime: Runtime | None) -> bool | None:
    """Return whether NRI is enabled: configured, or the version's default; None: not known."""
    if config.nri is not None:
        return config.nri
    version = Version.parse(runtime.version) if runtime else None
    if version is not None:
        return version[:3] >= _ON_SINCE[config.name][:3]
    return True if (config.version or 0) >= 3 else None  # that format is containerd 2's


def _is_elsewhere(facts: Facts, config: RuntimeConfig) -> bool:
    """Return whether the runtime's NRI socket is not the one that the daemon would use."""
    ours = socket_path(str(facts.where.nri_socket))
    return bool(is_on(config, facts.talker)) and socket_path(config.nri_socket) != ours


def _listener(facts: Facts, socket: Socket) -> Finding:
    """Return whether the kubelet's runtime listens, or another process.

    Only its configuration, its process or the daemon's registration shows that: to speak NRI with
    a runtime is to register a plugin.
    """
    ours, others = facts.runtimes.config, facts.runtimes.configs[1:]
    if ours is not None and socket.peer in {each.process for each in others}:
        found = (
            f"at {socket.path} listens process {socket.peer}, which is not the kubelet's runtime"
        )
        remedy = f"enable NRI in {ours.name} (process {ours.process}), and disable it in the other"
        return Finding("nri", Verdict.ERROR, found, remedy)
    if ours is not None and (ours.files or socket.peer == ours.process):
        return Finding("nri", Verdict.OK, f"the runtime listens at {socket.path}")
    if isinstance(facts.daemon, StatusReport) and facts.daemon.runtime:
        return Finding("nri", Verdict.OK, f"{facts.daemon.runtime} has registered the daemon")
    found = f"a process listens at {socket.path}: whether it speaks NRI is not checked"
    remedy = "start the daemon: nri-policy status says whether the runtime has registered it"
    return Finding("nri", Verdict.NOTE, found, remedy)


def _socket(facts: Facts) -> Iterator[Finding]:
    socket = facts.nri_socket
    if socket is None:
        return
    if not socket.problem:
        yield _listener(facts, socket)
        return
    if (config := facts.runtimes.config) is not None and _is_elsewhere(facts, config):
        return  # that is the problem
    found = f"{socket.path}: {socket.problem}"
    remedy = "restart the runtime"
    if "denied" in socket.problem:
        remedy = "run as root, and with SELinux as spc_t: the runtime gives its socket to no others"
    elif not socket.there:
        remedy = (
            "enable NRI and restart the runtime; if the socket is still missing, see the"
            " runtime's log"
        )
    elif "refused" in socket.problem:
        found += (
            ": no process listens; the file is from a runtime that has ended, or has NRI off now"
        )
        remedy = "start the runtime with NRI on"
    yield Finding("nri", Verdict.ERROR, found, remedy)

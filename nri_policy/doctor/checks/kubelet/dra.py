"""Whether claims for CPUs get as far as containers, where the settings want that."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.access import Access
from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.runtime_config import RuntimeConfig
from nri_policy.dra.cdi import FOLDER
from nri_policy.foundation.wording import counted
from nri_policy.nri.versions import Runtime
from nri_policy.nrt.publisher import Trouble
from nri_policy.settings import Settings

_UNKNOWN = {Trouble.UNREACHABLE, Trouble.UNAUTHORIZED, Trouble.REFUSED}
_COMPONENT = "apply the component configs/kustomize/dra (Helm: the chart's own dra.enabled)"
_FOLDERS = {str(FOLDER), str(FOLDER).removeprefix("/var")}  # /var/run is /run


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is in the way of a claim, from the API server to the runtime."""
    if not isinstance(facts.settings, Settings):
        return
    findings = [*_check_served(facts)]
    if facts.settings.dra.enabled:
        findings += _check_cluster(facts.cluster)
        if facts.runtimes.config is not None:
            findings += _check_runtime(facts.runtimes.config, facts.talker)
        if not findings:
            found = "the kubelet reaches the driver, and the runtime passes claims on"
            findings = [Finding("dra", Verdict.OK, found)]
    yield from findings


def _check_served(facts: Facts) -> Iterator[Finding]:
    """Yield whether pods wait for a driver that is not there."""
    socket = facts.registration
    if socket is None or not socket.problem:
        return
    if facts.claims:
        found = (
            f"{counted(facts.claims, 'claim')} prepared on this node, and no driver at"
            f" {socket.path}: {socket.problem}; their pods stay Terminating"
        )
        remedy = "start the daemon; its driver stays until all claims are given back"
        yield Finding("dra", Verdict.ERROR, found, remedy)
    elif isinstance(facts.settings, Settings) and facts.settings.dra.enabled:
        found = f"dra.enabled is on, and no driver at {socket.path}: {socket.problem}"
        remedy = "start the daemon, with the kubelet's folder mounted; see `dra` in status"
        yield Finding("dra", Verdict.WARNING, found, remedy)


def _check_cluster(access: Access | None) -> Iterator[Finding]:
    if access is None:
        found = "dra.enabled is on, and no cluster is known"
        remedy = "run the daemon in a pod, or with --kubeconfig"
        yield Finding("dra", Verdict.ERROR, found, remedy)
    elif access.trouble not in _UNKNOWN:
        if access.no_class:
            remedy = f"{_COMPONENT}; Kubernetes 1.36 or newer"
            yield Finding("dra", Verdict.ERROR, access.no_class, remedy)
        if access.denied_dra:
            found = f"dra.enabled is on, and the daemon may not {', '.join(access.denied_dra)}"
            yield Finding("dra", Verdict.ERROR, found, _COMPONENT)


def _check_runtime(config: RuntimeConfig, runtime: Runtime | None) -> Iterator[Finding]:
    on = config.cdi
    if on is None:
        on = runtime is None or runtime.has_cdi_on
    if not on:
        found = f"CDI is off in {config.name}: no container shows which claims it uses"
        remedy = "set enable_cdi = true in its CRI plugin's table, and restart it"
        yield Finding("dra", Verdict.ERROR, found, remedy)
    elif _FOLDERS.isdisjoint(each.rstrip("/") for each in config.cdi_folders):
        found = f"{config.name} reads CDI files of {', '.join(config.cdi_folders)} only"
        remedy = f"add {FOLDER} to its cdi_spec_dirs, and restart it"
        yield Finding("dra", Verdict.ERROR, found, remedy)

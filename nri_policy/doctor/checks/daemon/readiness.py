"""Whether the Node says what the settings want it to say of the daemon."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.kube.readiness import CONDITION, EFFECT, TAINT
from nri_policy.nrt.publisher import Trouble
from nri_policy.report import StatusReport
from nri_policy.settings import Settings

_UNKNOWN = {Trouble.UNREACHABLE, Trouble.UNAUTHORIZED, Trouble.REFUSED, Trouble.NO_NODE}
_RIGHTS = "apply the component configs/kustomize/readiness (Helm: readiness.enabled)"


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps pods away for ever, or lets them come too early."""
    if not isinstance(facts.settings, Settings):
        return
    wanted, access = facts.settings.readiness, facts.cluster
    asks = wanted.taint or wanted.condition
    if access is None or access.trouble in _UNKNOWN:
        if asks and access is None:
            found = "the settings have readiness on, and no cluster is known"
            remedy = "run the daemon in a pod, or with --kubeconfig"
            yield Finding("readiness", Verdict.WARNING, found, remedy)
        return
    node = facts.where.node_name
    findings = []
    if access.tainted and not wanted.taint:
        findings.append(
            Finding(
                "readiness",
                Verdict.ERROR,
                f"Node {node} has the taint {TAINT}, and readiness.taint is off: no pod comes",
                f"readiness.taint: true, or kubectl taint node {node} {TAINT}:{EFFECT}-",
            )
        )
    needed = {
        "patch nodes": wanted.taint,
        "patch nodes/status": wanted.condition,
        "create leases": wanted.while_away,
        "patch leases": wanted.while_away,
        "delete leases": wanted.while_away,
    }
    if denied := [each for each in access.denied_readiness if needed[each]]:
        found = f"the settings have readiness on, and the daemon may not {', '.join(denied)}"
        findings.append(Finding("readiness", Verdict.ERROR, found, _RIGHTS))
    if isinstance(facts.daemon, StatusReport) and facts.daemon.synchronized:
        if access.tainted and wanted.taint:
            found = f"the daemon runs, and Node {node} still has the taint {TAINT}"
            findings.append(Finding("readiness", Verdict.WARNING, found, "nri-policy status"))
        if wanted.condition and access.condition != "True":
            found = f"the daemon runs, and Node {node} has "
            found += f"{CONDITION}={access.condition}" if access.condition else f"no {CONDITION}"
            findings.append(Finding("readiness", Verdict.WARNING, found, "nri-policy status"))
    yield from findings
    if asks and not findings:
        yield Finding("readiness", Verdict.OK, f"Node {node} says whether the daemon is ready")

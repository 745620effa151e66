"""Whether the cluster knows the kinds that we write, and lets us."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.nrt.publisher import Trouble
from nri_policy.settings import Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what of custom resources and rights is missing."""
    access = facts.cluster
    if access is None:
        return
    if access.trouble in {Trouble.NO_CRD, Trouble.NO_NODE}:
        found, _, remedy = access.error.partition("; ")
        yield Finding("cluster", Verdict.ERROR, found, remedy)
    elif access.trouble is not None:
        remedy = "docs/nrt.md says what each error means"
        yield Finding("cluster", Verdict.ERROR, access.error, remedy)
    if access.denied:
        found = f"the daemon may not {', '.join(access.denied)}"
        remedy = "kubectl apply -f configs/kubernetes/rbac.yaml"
        yield Finding("cluster", Verdict.ERROR, found, remedy)
    wanted = isinstance(facts.settings, Settings) and facts.settings.pod_explanations
    if wanted and access.denied_explanations:
        found = f"podExplanations is on, and the daemon may not {access.denied_explanations[0]}"
        remedy = "apply the component configs/kustomize/explanations (Helm: explanations.enabled)"
        yield Finding("cluster", Verdict.ERROR, found, remedy)
    if not access.denied and access.trouble is None:
        found = f"Node {facts.where.node_name} exists, and the daemon may write its topology"
        yield Finding("cluster", Verdict.OK, found)

"""The document of an audit."""

from __future__ import annotations

from nri_policy.audit.result import AuditResult, document
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company


def test_what_runs_outside_of_pods_is_listed_where_it_may_run_on_exclusive_cpus() -> None:
    company = [
        Company(container_id=name, name=name, cpus=CPUSet.parse(cpus), others=())
        for name, cpus in (("a", "2-3"), ("b", "6"))
    ]
    outside = {"system.slice": "0-7", "init.scope": "3", "batch": "0-1,4-5"}
    found = document(
        AuditResult(), "report", company, {name: CPUSet.parse(outside[name]) for name in outside}
    )
    assert [(each.container, each.cpus) for each in found.company] == [("a", "2-3"), ("b", "6")]
    assert found.outside == ("init.scope", "system.slice")

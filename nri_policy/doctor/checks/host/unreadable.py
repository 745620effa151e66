"""Parts of the node that could not be read."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict


def check(facts: Facts) -> Iterator[Finding]:
    """Report parts of the node that could not be read in time."""
    for text in facts.unknown:
        remedy = "check whether a file system or a server there does not answer"
        yield Finding("reading", Verdict.WARNING, text, remedy)

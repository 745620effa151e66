"""What could not be looked at."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what was not read in time, or whose reading failed."""
    for text in facts.unknown:
        remedy = "check whether a file system or a server there does not answer"
        yield Finding("reading", Verdict.WARNING, text, remedy)

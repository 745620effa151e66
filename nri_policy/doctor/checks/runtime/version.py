"""Known problems of the runtime's version."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict


def check(facts: Facts) -> Iterator[Finding]:
    """Report the runtime's version, and known problems of this version."""
    runtime = facts.talker
    if runtime is None:
        if facts.runtimes.config is not None:
            found = f"{facts.runtimes.config.name} does not answer at its CRI socket"
            found += f" {facts.runtimes.config.cri_socket}: its version is not known"
            running = facts.runtimes.config.running
            yield Finding(
                "runtime",
                Verdict.NOTE if running else Verdict.WARNING,
                found,
                "" if running else "start it",
            )
        return
    if runtime.nri is None:
        found = (
            f"{runtime}: its NRI version is unknown; the daemon uses only what every version has"
        )
        yield Finding("runtime", Verdict.NOTE, found)
        return
    found = f"{runtime}, with NRI {runtime.nri}"
    if runtime.registration_can_deadlock:
        yield Finding(
            "runtime",
            Verdict.WARNING,
            f"{found}: a plugin that registers can block it for good (containerd#10085)",
            "upgrade to containerd 1.7.16, CRI-O 1.31 or newer",
        )
    elif not runtime.unsolicited_updates_safe:
        found += ": the daemon changes containers between its events in a way that cannot block it"
        yield Finding("runtime", Verdict.OK, found)
    else:
        yield Finding("runtime", Verdict.OK, found)

"""How the daemon is that runs here."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.foundation.wording import counted
from nri_policy.observability.watchdog import STARVATION
from nri_policy.settings_sources.cluster_settings import NOT_PINNED
from nri_policy.store.errors import NOT_STORED

#: Remedies for the notices that are warnings, by the notice's prefix.
_REMEDIES = {
    STARVATION: (
        "for its pod priorityClassName: system-node-critical and a CPU request of 250m or more;"
        " for the unit CPUWeight=1000, as in systemd/nri-policy.service"
    ),
    NOT_PINNED: "see the check cluster; without settings in the cluster, --config-namespace=",
    NOT_STORED: (
        "free space on the disk of the state folder, make it writable, or stop what removes its"
        " files; everything is stored within a minute of that"
    ),
}


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what the daemon says of itself."""
    status = facts.daemon
    if status is None:
        return
    if isinstance(status, str):
        remedy = "if the daemon ends at once after its start, see its log"
        yield Finding("daemon", Verdict.WARNING, status, remedy)
        return
    if status.latest_reload is not None and not status.latest_reload.accepted:
        found = f"it keeps its old settings: {status.latest_reload.reason}"
        remedy = f"correct {status.latest_reload.origin}: the daemon then reads it again"
        yield Finding("daemon", Verdict.WARNING, found, remedy)
    for publication in status.publications:
        if publication.phase == "failing":
            found = f"the node's topology is not published to {publication.to}: {publication.error}"
            yield Finding(
                "daemon", Verdict.WARNING, found, "docs/nrt.md says what each error means"
            )
        if publication.rivals:
            rivals = ", ".join(publication.rivals)
            found = f"the node's topology is written by others too: {rivals}"
            yield Finding("daemon", Verdict.WARNING, found, "remove the other exporter")
    yield from map(_notice, status.notices)
    if not status.synchronized:
        found = (
            f"it runs, but has no list of containers from a runtime ({status.runtime or 'none'})"
        )
        yield Finding("daemon", Verdict.WARNING, found, "see the check nri above")
        return
    placed = counted(status.containers, "container")
    found = f"it runs, and has placed {placed} of {status.runtime}"
    if status.memory_bytes:  # an earlier version does not say
        found += f"; it uses {status.usage}"
    yield Finding("daemon", Verdict.OK, found)


def _notice(notice: str) -> Finding:
    for prefix, remedy in _REMEDIES.items():
        if notice.startswith(prefix):
            return Finding("daemon", Verdict.WARNING, notice, remedy)
    return Finding("daemon", Verdict.NOTE, notice)

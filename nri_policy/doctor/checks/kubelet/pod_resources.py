"""Whether the kubelet tells us of devices, where the settings want that."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.settings import Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield whether its PodResources socket is served, and whether devices are overlooked."""
    settings, socket = facts.settings, facts.pod_resources
    if not isinstance(settings, Settings) or not socket:
        return
    if not settings.agent.pod_resource_api:
        if facts.devices:
            found = (
                f"pods have devices ({', '.join(facts.devices)}), but agent.podResourceAPI is off:"
                " containers are not placed near devices that the kubelet assigns"
            )
            remedy = "set agent.podResourceAPI: true"
            yield Finding("devices", Verdict.WARNING, found, remedy)
        return
    if socket.problem:
        found = f"agent.podResourceAPI is on, but {socket.path}: {socket.problem}"
        remedy = (
            "start the kubelet, and make its folder visible here; or set agent.podResourceAPI:"
            " false"
        )
        yield Finding("devices", Verdict.WARNING, found, remedy)
    else:
        yield Finding("devices", Verdict.OK, f"the kubelet listens at {socket.path}")

"""Who else sets cpusets, or tells the cluster what is left on the node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.processes import Process
from nri_policy.settings import Settings

_OURS = "nri-policy"
# Names of programs, by what they do: policies of nri-plugins and its forerunner, and the DRA driver
_PINNING = re.compile(r"nri-resource-policy-.+|cri-resmgr|cri-resource-manager|dracpu.*")
_EXPORTING = re.compile(r"nfd-topology-updater|resource-topology-exporter")
_PLUGIN = re.compile(r"[0-9]{2}-(?P<name>.+)", re.ASCII)


def check(facts: Facts) -> Iterator[Finding]:
    """Report programs that do the daemon's work."""
    findings = [*_check_running(facts), *_check_installed(facts.runtimes.plugins, facts.processes)]
    yield from findings
    if not findings and facts.processes:
        found = "no other program was found that sets cpusets or publishes the node's topology"
        yield Finding("plugins", Verdict.OK, found)


def _check_running(facts: Facts) -> Iterator[Finding]:
    for process in facts.processes:
        if _PINNING.fullmatch(process.name):
            yield Finding(
                "plugins",
                Verdict.ERROR,
                f"{process.name} runs (process {process.id}): it sets the CPUs of containers too",
                "keep one of the two: remove its DaemonSet from this node",
            )
        elif _EXPORTING.fullmatch(process.name) and _publishes(facts):
            yield Finding(
                "plugins",
                Verdict.WARNING,
                f"{process.name} runs (process {process.id}): it writes the same "
                "NodeResourceTopology object",
                "remove it, or agent.nodeResourceTopology: false",
            )
    daemons = [process for process in facts.processes if _is_daemon(process)]
    if len(daemons) > 1:
        yield Finding(
            "plugins",
            Verdict.ERROR,
            f"{len(daemons)} nri-policy daemons run (processes "
            f"{', '.join(str(each.id) for each in daemons)}): all but one of a runtime wait, and"
            " those of different runtimes give containers the same CPUs",
            "stop all but one; a systemd service and a DaemonSet are two",
        )


def _check_installed(programs: Sequence[str], processes: Sequence[Process]) -> Iterator[Finding]:
    """Yield what is odd about the programs that the runtime starts by itself."""
    for program in programs:
        form = _PLUGIN.fullmatch(PurePosixPath(program).name)
        if form is None:
            found = (
                f"{program} is not a valid plugin name: the runtime then starts no plugin of this"
                " folder"
            )
            yield Finding("plugins", Verdict.ERROR, found, "name it NN-name, or remove it")
        elif _PINNING.fullmatch(form["name"]):
            found = f"the runtime starts {program}, which sets the CPUs of containers too"
            yield Finding("plugins", Verdict.ERROR, found, "remove it, and restart the runtime")
        elif form["name"] == _OURS and any(
            _is_daemon(each) and str(each.arguments[0]) != program for each in processes
        ):
            found = f"the runtime starts {program}, and another nri-policy runs"
            yield Finding("plugins", Verdict.ERROR, found, "keep one of the two")
        else:
            yield Finding("plugins", Verdict.NOTE, f"the runtime starts {program}")


def _publishes(facts: Facts) -> bool:
    settings = facts.settings
    return not isinstance(settings, Settings) or settings.agent.node_resource_topology


def _is_daemon(process: Process) -> bool:
    """Return whether a process is `nri-policy run`, with its interpreter in front or not.

    The arguments of a program that started it, such as sudo, have these words too, but not first.
    """
    words = [PurePosixPath(word).name for word in process.arguments[:3]]
    return words[process.name.startswith("python") :][:2] == [_OURS, "run"]

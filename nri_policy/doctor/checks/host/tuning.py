"""Whether a tuner runs for what the settings have set, and what else sets the same values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.processes import Process, find_named
from nri_policy.settings import IsolateInterrupts, Settings

_PROGRAM = ["nri-policy", "tuner"]


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps tunables from being set; processes that cannot be seen are not judged."""
    settings = facts.settings
    if not isinstance(settings, Settings) or not facts.processes:
        return
    isolates = settings.isolate_interrupts is not IsolateInterrupts.OFF
    wanted = ["isolateInterrupts"] * isolates + ["cpuClasses"] * bool(settings.cpu_classes)
    rdt = settings.control.rdt
    wanted += ["control.rdt.partitions"] * (rdt.enable and bool(rdt.partitions))
    crio = facts.talker is not None and facts.talker.serves_crio_annotations
    if settings.crio_annotation_namespaces and not crio:
        wanted.append("crioAnnotationNamespaces")
    if crio:
        found = "CRI-O serves the annotations of crio.io itself: this policy leaves them alone"
        unused = ", and crioAnnotationNamespaces has no effect"
        found += unused * bool(settings.crio_annotation_namespaces)
        yield Finding("tuning", Verdict.NOTE, found)
    tuned = any(_is_tuner(each) for each in facts.processes)
    if wanted and not tuned:
        found = f"no tuner runs, which these settings need: {', '.join(wanted)}"
        remedy = "start it: systemctl enable --now nri-policy-tuner, or as docs/tuning.md says"
        yield Finding("tuning", Verdict.WARNING, found, remedy)
    for balancer in find_named(facts.processes, "irqbalance") if isolates or tuned else ():
        if tuned and str(balancer.id) in facts.balancers:
            found = "irqbalance runs: it leaves alone the interrupts that the tuner sets"
            yield Finding("tuning", Verdict.NOTE, found)
            continue
        found = "irqbalance runs: it moves interrupts back to exclusive CPUs"
        remedy = "stop it, or keep it off these CPUs with IRQBALANCE_BANNED_CPULIST"
        yield Finding("tuning", Verdict.WARNING if isolates else Verdict.NOTE, found, remedy)


def _is_tuner(process: Process) -> bool:
    """Return whether a process is `nri-policy tuner`, with its interpreter in front or not."""
    words = [PurePosixPath(word).name for word in process.arguments[:3]]
    return words[process.name.startswith("python") :][:2] == _PROGRAM

"""Time the start of a pod on a real containerd, with the daemon and without it.

A pod's start is what the kubelet calls for it: RunPodSandbox, CreateContainer, StartContainer. The
daemon places the pods on this host's own CPUs. Two containerds of one version run side by side, one
of them with the daemon; they start pods in turn, so that whatever else the machine does touches
both, and they swap the daemon after each round. It needs root, for containerd.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.table import Section
from tests.e2e import image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet, resources

ROUNDS = 6
PODS = 20  # of each round on each containerd
WARMING = 3
BURSTABLE = resources(milli_cpu=10, milli_cpu_limit=100, memory=16 << 20, memory_limit=16 << 20)
SETTINGS = {"reservedResources": {"cpu": "750m"}}


@dataclass(slots=True)
class Medians:
    """The median start in each round, in seconds."""

    without: list[float] = field(default_factory=list)
    with_it: list[float] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        ratios = [b / a for a, b in zip(self.without, self.with_it, strict=True)]
        starts = [
            _ranged([1e3 * each for each in some], 0) for some in (self.without, self.with_it)
        ]
        return (*starts, _ranged(ratios, 2))


def section() -> Section:
    text = (
        "RunPodSandbox, CreateContainer and StartContainer of a Burstable pod, in ms:"
        f" {ROUNDS} rounds of {PODS} pods on each of two containerds that take turns, one of them"
        " with the daemon. The median of the rounds, the least and the most; the ratio within a"
        " round."
    )
    rows = []
    if os.geteuid() != 0:
        text = "Not measured: containerd needs root."
    else:
        rows = [(version, *_measure(suite).row()) for suite, version in packages.SUITES.items()]
    return Section(
        title="A pod's start on a real containerd",
        text=text,
        head=("containerd", "without the daemon", "with it", "ratio"),
        rows=rows,
    )


def _ranged(values: Sequence[float], digits: int) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def _measure(suite: str) -> Medians:
    medians = Medians()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        archive = folder / "image.tar"
        image.write(packages.busybox(), archive)
        pair = [stack.enter_context(_runtime(suite, archive)) for _ in range(2)]
        kubelets = [stack.enter_context(closing(each.kubelet("runc"))) for each in pair]
        for at in range(ROUNDS):
            watched = at % 2
            own = folder / f"round-{at}"
            own.mkdir()
            daemon = Daemon(
                own, settings=SETTINGS, host_root=Path("/"), nri_socket=pair[watched].nri_socket
            )
            with closing(daemon):
                daemon.start()
                starts = _starts(kubelets)
                daemon.stop()
            medians.with_it.append(starts[watched])
            medians.without.append(starts[1 - watched])
    return medians


@contextmanager
def _runtime(suite: str, archive: Path) -> Iterator[Containerd]:
    with closing(Containerd(packages.programs(suite))) as runtime:
        runtime.start()
        runtime.load(archive)
        yield runtime


def _starts(kubelets: Sequence[Kubelet]) -> list[float]:
    """Start and delete pods, one after the other; return each kubelet's median start in seconds."""
    starts: list[list[float]] = [[] for _ in kubelets]
    for at in range(WARMING + PODS):
        for kubelet, own in zip(kubelets, starts, strict=True):
            began = time.perf_counter()
            container = kubelet.run(f"pod-{at}", BURSTABLE)
            own.append(time.perf_counter() - began)
            container.pod.delete()
    return [statistics.median(own[WARMING:]) for own in starts]


def main() -> None:
    print(section().plain())

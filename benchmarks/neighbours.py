"""Time owners of CPUs beside many neighbours that have to leave them, on real runtimes.

Four runtimes of one version run side by side, each with a daemon and with 0, 40, 120 or 300
BestEffort containers that run. On each in turn a container with a CPU of its own is created,
started and stopped, which moves all the others to another CPU and back. Then, while another
such container is created, a BestEffort one of another pod is. What a runtime takes longer
for among many containers is not the daemon's: a creation that moves nobody shows it.

"the daemon" writes cpusets as installed. "the runtime" does where the daemon finds cgroups mounted
read-only: it moves every neighbour, with the answer to the creation or stop. It needs root.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.table import Section
from tests.e2e import cgroup, daemon, image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.crio import Crio
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import AVAILABLE, RESERVED
from tests.e2e.waiting import eventually
from tools import runtimes

SIZES = (0, 40, 120, 300)
ROUNDS = 3
TRIES = {"the runtime": 1, "the daemon": 3}  # who writes cpusets; on each node in each round
PATIENCE = 600  # seconds for a call of CRI
IN_A_POD = 30  # neighbours: pods cost more than containers
SOON = 0.005  # seconds after an owner's creation has begun
WHAT = (
    "creation",
    "creation and start",
    "stop",
    "creation in another pod",
    "a creation that moves nobody",
)
MEMORY = Path("/dev/shm")  # where /run is on a node: files there wait for no disk
OWNER = guaranteed(1000)
SETTINGS = {
    "availableResources": {"cpu": f"cpuset:{AVAILABLE}"},
    "reservedResources": {"cpu": f"cpuset:{RESERVED}"},
    "preferIsolatedCPUs": False,
}


@dataclass(slots=True, kw_only=True)
class Node:
    """One runtime with its neighbours, and what was timed there, in seconds by way and what."""

    folder: Path
    containers: Path  # what the daemon shows them of their resources, kept from run to run
    runtime: Runtime
    kubelet: Kubelet
    neighbours: list[Container] = field(default_factory=list)
    took: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def fill(self, count: int) -> None:
        """Start the neighbours."""
        while len(self.neighbours) < count:
            number = len(self.neighbours)
            names = [f"n{at}" for at in range(number, min(count, number + IN_A_POD))]
            pod = self.kubelet.run_pod(f"neighbours{number}", dict.fromkeys(names, BEST_EFFORT))
            for name in names:
                container = pod.create(name)
                container.start()
                self.neighbours.append(container)

    @contextmanager
    def watched(self, way: str) -> Iterator[None]:
        """Run a daemon."""
        own = self.folder / f"{len(self.took)}-{time.monotonic_ns()}"
        own.mkdir()
        watching = daemon.Daemon(
            own,
            settings=SETTINGS,
            host_root=Path("/"),
            nri_socket=self.runtime.nri_socket,
            program=_blind(own) if way == "the runtime" else daemon.PROGRAM,
            containers_dir=self.containers,
        )
        with closing(watching):
            watching.start()
            yield
            watching.stop()

    def rest(self) -> None:
        """Wait until all neighbours are back on their CPUs of before the owner."""

        def away() -> int:
            return sum(cgroup.cpuset(each.cgroup).cpus == RESERVED for each in self.neighbours)

        if left := eventually(away, lambda count: not count, every=0.1):
            raise RuntimeError(f"{left} neighbours did not come back")

    def measure(self, way: str) -> None:
        """Time a creation that moves no container, one owner, then another pod beside an owner."""
        quiet = self.kubelet.run_pod("quiet", {"main": BEST_EFFORT})
        self.rest()
        began = time.perf_counter()
        quiet.create("main")
        self._took(way, "a creation that moves nobody", began)
        quiet.delete()
        owner = self.kubelet.run_pod("owner", {"main": OWNER})
        self.rest()
        began = time.perf_counter()
        own = owner.create("main")
        self._took(way, "creation", began)
        own.start()
        self._took(way, "creation and start", began)
        cpus = cgroup.cpuset(own.cgroup).cpus
        for each in self.neighbours:
            if not cpus.isdisjoint(cgroup.cpuset(each.cgroup).cpus):
                raise RuntimeError(f"a neighbour is still on {cpus}")
        began = time.perf_counter()
        own.stop()
        self._took(way, "stop", began)
        owner.delete()
        owner = self.kubelet.run_pod("owner", {"main": OWNER})
        third = self.kubelet.run_pod("third", {"main": BEST_EFFORT})
        self.rest()
        with _meanwhile(lambda: owner.create("main")):
            time.sleep(SOON)
            began = time.perf_counter()
            third.create("main")
            self._took(way, "creation in another pod", began)
        owner.delete()
        third.delete()

    def _took(self, way: str, what: str, began: float) -> None:
        self.took.setdefault((way, what), []).append(time.perf_counter() - began)


@contextmanager
def _meanwhile(act: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _blind(folder: Path) -> Path:
    """Return a program that is the daemon, where no cpuset can be written."""
    mount = cgroup.cpuset_hierarchy()
    assert mount is not None
    inner = f'mount -o remount,bind,ro {mount} && exec {shlex.quote(str(daemon.PROGRAM))} "$@"'
    program = folder / "nri-policy"
    program.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} sh "$@"\n')
    program.chmod(0o755)
    return program


def at_hand() -> Mapping[str, Callable[[], Runtime]]:
    """Return what makes each runtime that is here, by name and version."""
    made: dict[str, Callable[[], Runtime]] = {
        f"containerd {version}": partial(_debian, suite)
        for suite, version in packages.SUITES.items()
    }
    if (newest := runtimes.containerd()) is not None:
        made[f"containerd {runtimes.CONTAINERD}"] = lambda: Containerd(
            packages.programs_in(newest, newest / "runc")
        )
    if (crio := runtimes.crio()) is not None:
        made[f"CRI-O {runtimes.CRIO}"] = lambda: Crio(packages.crio(crio))
    return made


def _debian(suite: str) -> Runtime:
    return Containerd(packages.programs(suite))


def measured(make: Callable[[], Runtime]) -> Sequence[Node]:
    """Return a node of each of SIZES with its figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        memory = Path(stack.enter_context(TemporaryDirectory(dir=MEMORY)))
        archive = folder / "image.tar"
        image.write(packages.busybox(), archive)
        nodes = [
            stack.enter_context(_node(make(), archive, folder / str(n), memory / str(n)))
            for n in SIZES
        ]
        with ExitStack() as daemons:
            for node, size in zip(nodes, SIZES, strict=True):
                daemons.enter_context(node.watched("the daemon"))
                node.fill(size)
        for _ in range(ROUNDS):
            for way, tries in TRIES.items():
                with ExitStack() as daemons:
                    for node in nodes:
                        daemons.enter_context(node.watched(way))
                    for _ in range(tries):
                        for node in nodes:
                            node.measure(way)
        return nodes


@contextmanager
def _node(runtime: Runtime, archive: Path, folder: Path, containers: Path) -> Iterator[Node]:
    folder.mkdir()
    with closing(runtime):
        runtime.start()
        runtime.load(archive)
        # its pods end with the runtime
        kubelet = runtime.kubelet("runc", seconds=PATIENCE)
        yield Node(folder=folder, containers=containers, runtime=runtime, kubelet=kubelet)


def sections(names: Sequence[str] = ()) -> list[Section]:
    """Measure the runtimes of these names, or all at hand."""
    text = (
        "In ms, on runtimes of one version with so many running BestEffort containers, in turn: a"
        " container with one exclusive CPU is created, started and stopped, which moves the others"
        " to another CPU and back; a BestEffort container of another pod is created while another"
        " such container is being created; and one is created by itself, which shows what the"
        f" runtime takes longer for among many. Of {ROUNDS} rounds the median (minimum to maximum)."
        " The daemon writes the cpusets of the others as installed; where cgroups are mounted"
        " read-only, the runtime writes them."
    )
    times, ratios = [], []
    if os.geteuid() != 0:
        text = "Not measured: runtimes need root."
    else:
        for name, make in at_hand().items():
            if names and name not in names:
                continue
            nodes = measured(make)
            for way in TRIES:
                for node in nodes:
                    own = (name, str(len(node.neighbours)), way)
                    took = [node.took[way, what] for what in WHAT]
                    times.append((*own, *(_ranged(each, 1e3, 0) for each in took)))
                    if node is not nodes[0]:
                        alone = [nodes[0].took[way, what] for what in WHAT]
                        pairs = zip(took, alone, strict=True)
                        ratios.append((*own, *(_ratio(*pair) for pair in pairs)))
    return [
        Section(
            title="Exclusive CPUs on a crowded node",
            text=text,
            head=("runtime", "neighbours", "cpusets are written by", *WHAT),
            rows=times,
        ),
        Section(
            title="The same, as multiples of an empty node",
            text="The medians above, divided by those beside no neighbour.",
            head=("runtime", "neighbours", "cpusets are written by", *WHAT),
            rows=ratios,
        ),
    ]


def _ranged(values: Sequence[float], unit: float, digits: int) -> str:
    shown = (unit * each for each in (statistics.median(values), min(values), max(values)))
    middle, least, most = (f"{each:.{digits}f}" for each in shown)
    return f"{middle} ({least} to {most})"


def _ratio(values: Sequence[float], alone: Sequence[float]) -> str:
    return f"{statistics.median(values) / statistics.median(alone):.2f}"


def main() -> None:
    """Print the figures of all runtimes at hand, or of those that `--on=NAME` names."""
    names = [each.removeprefix("--on=") for each in sys.argv if each.startswith("--on=")]
    for each in sections(names):
        print(each.plain())

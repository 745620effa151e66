"""Changes outside of events, many of them, under a runtime that is busy: it must go on answering.

A short form by default; NRI_POLICY_STRESS is the seconds for each runtime (`make stress`). The
machine is that of the cold start: two packages of four CPUs, dram nodes 0 and 1, pmem 2 and 3.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware.capture import open_capture
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed, resources
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

log = logging.getLogger(__name__)

CAPTURE = Path(__file__).parents[1] / "scenarios/pmem/c-pmem.tar.xz"
COLD = {"cold-start.resource-policy.nri.io/pod": "duration: 1s"}
RESERVED = ("cpuset:0", "cpuset:4", "cpuset:0,4")
SECONDS = float(os.environ.get("NRI_POLICY_STRESS", "3"))  # of being busy
QUIET = 2 + SECONDS / 30  # pauses without requests, in which the daemon must send its updates


@pytest.fixture(scope="module")
def host_root() -> Iterator[Path]:
    with open_capture(CAPTURE) as root:
        yield root


class Storm:
    """What goes on at once, each in a thread of its own, until it has gone on for long enough."""

    def __init__(self, kubelet: Kubelet, daemon: Daemon) -> None:
        self.kubelet = kubelet
        self.daemon = daemon
        self.calls: Counter[str] = Counter()
        self.ended = threading.Event()
        self.living = [
            kubelet.run("guest", BEST_EFFORT),
            kubelet.run("shared", resources(milli_cpu=200, milli_cpu_limit=400)),
            kubelet.run("cold", guaranteed(1000), annotations=COLD),
        ]
        self._numbers = itertools.count()
        self._reserved = itertools.cycle(RESERVED)

    def resize(self) -> None:
        """Have the runtime update what runs, as the kubelet does."""
        chance = random.Random(1)
        while not self.ended.is_set():
            amount = chance.randrange(100, 400)
            self.living[1].update(resources(milli_cpu=amount, milli_cpu_limit=400))
            self.living[0].update(BEST_EFFORT)
            self.calls["UpdateContainerResources"] += 2

    def come_and_go(self) -> None:
        """Run pods and delete them; each first changes once more, by the end of its cold start."""
        while not self.ended.is_set():
            container = self.kubelet.run(
                f"short{next(self._numbers)}", guaranteed(1000), annotations=COLD
            )
            self.ended.wait(1.2)
            container.pod.delete()
            self.calls["pods"] += 1

    def reload(self) -> None:
        """Move the reserved CPUs, which changes whoever shares what they take or leave."""
        while not self.ended.is_set():
            self.reserve()

    def reserve(self) -> None:
        """Reserve other CPUs than before, so that the daemon has updates to send."""
        cpus = next(self._reserved)
        self.daemon.reload({"reservedResources": {"cpu": cpus}, "preferIsolatedCPUs": False})
        self.calls["reloads"] += 1

    def busy(self, seconds: float, *doing: Callable[[], None]) -> None:
        """Do all of that for a while."""
        self.ended.clear()
        with ThreadPoolExecutor(len(doing)) as pool:
            futures = [pool.submit(each) for each in doing]
            time.sleep(seconds)
            self.ended.set()
            for future in futures:
                future.result()


def places(daemon: Daemon, living: list[Container]) -> dict[str, Any]:
    """Return the placements that the daemon reports; None for an unknown container."""
    shown = daemon.containers()
    names = {each.id: f"default/{each.pod.name}/{each.name}" for each in living}
    return {
        each: (shown[name]["cpus"], shown[name]["mems"]) if name in shown else None
        for each, name in names.items()
    }


def test_a_storm_of_changes_leaves_a_runtime_that_answers(
    stage: Kubelet, runtime: Runtime, daemon: Daemon
) -> None:
    storm, began, seen = Storm(stage, daemon), time.monotonic(), 0
    storm.busy(SECONDS, storm.resize, storm.come_and_go, storm.reload)
    for _ in range(round(QUIET)):
        # nothing comes by that could take this along, until the daemon does something about it
        storm.reserve()
        seen = daemon.await_line("event=sending way=", after=max(seen, 1))
        storm.busy(1.5, storm.resize, storm.come_and_go)  # while it sends or registers again
    assert stage.version()
    after = stage.run("after", guaranteed(1000))
    living = [*storm.living, after]

    def differing() -> dict[str, Any]:
        told = places(daemon, living)
        played = {each.id: runtime.played(each.id) for each in living}
        return {
            each: (told[each], played[each])
            for each in told
            if told[each] != (str(played[each].cpus), str(played[each].mems))
        }

    assert not eventually(differing, lambda found: not found)
    sent = daemon.counted("event=sending way=")
    assert sent >= round(QUIET)

    def unexplained() -> int:
        """Return how many registrations have another reason, or are still to come."""
        reasons = ("event=sending way=register", "event=registering-again")
        made = daemon.counted("event=synchronized")
        return made - 1 - sum(daemon.counted(each) for each in reasons)

    assert eventually(unexplained, lambda number: number == 0) == 0
    assert not daemon.counted("event=update-refused")
    assert daemon.counted("event=reloaded") > QUIET
    assert storm.calls["pods"] > 1
    log.info(
        "%s: %s, %d reloads taken, changes sent %d times, in %.1f s",
        stage.version(),
        dict(storm.calls),
        daemon.counted("event=reloaded"),
        sent,
        time.monotonic() - began,
    )

"""What containers used in the last minute: counters of the kernel, and the samples between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from nri_policy.audit.cgroup import MAX_THREADS, Cgroups
from nri_policy.audit.cgroup_files import statistics_of
from nri_policy.audit.cpu_use import PERIOD, CpuUse, CpuUseSamples
from nri_policy.foundation.clock import Clock
from tests.unit.audit.host import Root

POD = "kubepods/pod1"


@pytest.fixture(params=[1, 2])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Root:
    return Root(tmp_path, request.param)


def count(
    root: Root, path: str, *, usage: float, periods: int, throttled: int, time: float
) -> None:
    """Write the counters of a cgroup as the kernel does."""
    lines = [f"nr_periods {periods}", f"nr_throttled {throttled}"]
    if root.version == 1:
        files = {
            f"cpuacct/{path}/cpuacct.usage": f"{usage * 1e9:.0f}",
            f"cpu/{path}/cpu.stat": "\n".join([*lines, f"throttled_time {time * 1e9:.0f}"]),
        }
    else:
        lines = [f"usage_usec {usage * 1e6:.0f}", *lines, f"throttled_usec {time * 1e6:.0f}"]
        files = {f"{path}/cpu.stat": "\n".join(lines)}
    for name, text in files.items():
        file = root.path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def wait(root: Root, thread: int, delay: float) -> None:
    (root.path / f"proc/{thread}/schedstat").write_text(f"5 {delay * 1e9:.0f} 3\n")


def test_counters_of_both_versions_of_cgroups_are_the_same(root: Root) -> None:
    root.cgroup(f"{POD}/1", thread=70)
    count(root, f"{POD}/1", usage=1.5, periods=600, throttled=34, time=2.25)
    wait(root, 70, 0.5)
    assert Cgroups(root.path).cpu_use([f"/{POD}/1", f"/{POD}/2", "/../etc"]) == {
        f"/{POD}/1": CpuUse(
            seconds=1.5, periods=600, throttled=34, throttled_seconds=2.25, waited={70: 0.5}
        )
    }


def test_what_a_kernel_does_not_say_is_left_out(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1", thread=70)
    assert Cgroups(root.path).cpu_use([f"/{POD}/1"]) == {}
    count(root, f"{POD}/1", usage=1, periods=0, throttled=0, time=0)
    assert Cgroups(root.path).cpu_use([f"/{POD}/1"])[f"/{POD}/1"].waited == {}
    for text in ("", "5", "5 x 3", "5 -1 3"):
        (root.path / "proc/70/schedstat").write_text(text)
        assert Cgroups(root.path).cpu_use([f"/{POD}/1"])[f"/{POD}/1"].waited == {}
    cgroup.hold(0)
    assert Cgroups(root.path).cpu_use([f"/{POD}/1"])[f"/{POD}/1"].waited == {}


def test_of_many_threads_some_are_read(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1", thread=100)
    count(root, f"{POD}/1", usage=1, periods=0, throttled=0, time=0)
    threads = range(100, 100 + 2 * MAX_THREADS)
    for thread in threads:
        root.thread(thread, "2-5")
        wait(root, thread, 1)
    cgroup.hold(*threads)
    (use,) = Cgroups(root.path).cpu_use([f"/{POD}/1"]).values()
    assert [*use.waited] == [*threads[:MAX_THREADS]]


class Node:
    """A node whose containers use a CPU and a half each, on a clock of its own."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waited: Mapping[int, float] = {}
        self.running = {"/a": 0.0}
        self.samples = CpuUseSamples(self.read, lambda: self.running, Clock(now=lambda: self.time))

    def read(self, cgroups: Iterable[str]) -> Mapping[str, CpuUse]:
        return {
            each: CpuUse(
                seconds=1.5 * self.time,
                periods=int(10 * self.time),
                throttled=int(self.time),
                throttled_seconds=self.time / 20,
                waited=self.waited,
            )
            for each in cgroups
            if each in self.running
        }

    async def live(self, seconds: float) -> None:
        for _ in range(int(seconds / PERIOD)):
            await self.samples.sample()
            self.time += PERIOD


async def test_the_last_minute_is_half_of_one_to_one_and_a_half() -> None:
    node = Node()
    await node.live(600)
    for later in range(-int(PERIOD), 0):
        node.time += later
        recent = node.samples.recent(["/a"])["/a"]
        node.time -= later
        assert 30 <= recent.seconds <= 90
        assert recent.cpus == pytest.approx(1.5)
        assert recent.periods == pytest.approx(10 * recent.seconds, abs=1)
        assert recent.throttled == pytest.approx(recent.seconds, abs=1)
        assert recent.throttled_seconds == pytest.approx(recent.seconds / 20)
        assert recent.waited_seconds is None


async def test_a_container_that_came_since_is_known_for_the_time_that_it_is_there() -> None:
    node = Node()
    assert node.samples.recent(["/a"]) == {}, "there is no sample yet"
    await node.samples.sample()
    node.time += 1
    assert node.samples.recent(["/a"]) == {}, "a second says too little"
    await node.live(100)
    node.running["/b"] = 0.0
    await node.live(PERIOD)
    found = node.samples.recent(["/a", "/b", "/gone"])
    assert (found["/a"].seconds, found["/b"].seconds) == (60, PERIOD)
    assert found.keys() == {"/a", "/b"}


async def test_threads_that_ended_or_came_do_not_count() -> None:
    node = Node()
    node.waited = {1: 1.0, 2: 5.0}
    await node.live(PERIOD)
    node.waited = {1: 3.5, 3: 99.0}
    assert node.samples.recent(["/a"])["/a"].waited_seconds == 2.5


async def test_counters_that_began_again_are_no_use() -> None:
    """A cgroup of the same name may be another one."""
    node = Node()
    await node.live(PERIOD)
    node.samples._read = lambda _: {"/a": CpuUse(seconds=0.5)}
    recent = node.samples.recent(["/a"])["/a"]
    assert (recent.cpus, recent.periods, recent.throttled, recent.throttled_seconds) == (0, 0, 0, 0)


def test_lines_that_are_no_counters_are_left_out() -> None:
    assert statistics_of("usage_usec 5\nodd x\nalone\nbelow -1\n\n") == {"usage_usec": 5}
    assert statistics_of(None) == {}

"""CRI-O's annotations end to end: a daemon, a tuner, and CPUs as strict as the kernel's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.tuning.items import Desired, Item, Kind
from nri_policy.tuning.protocol import Reply
from tests.support.daemon import Served, pod, served
from tests.support.fake_cpus import HYBRID, two_kinds
from tests.support.patience import HANGS
from tests.support.tunables import make_host

IRQ, CSTATES, GOVERNOR = (
    "irq-load-balancing.crio.io",
    "cpu-c-states.crio.io",
    "cpu-freq-governor.crio.io",
)
QUIET = {IRQ: "disable", CSTATES: "max_latency:10", GOVERNOR: "performance"}
CLASSES: dict[str, Any] = {
    "sharedPoolCPUClass": "calm",
    "cpuClasses": [
        {"name": "calm", "energyPerformancePreference": 192},
        {"name": "deep", "disabledCstates": ["C6", "C8"], "freqGovernor": "powersave"},
    ],
}


class Host:
    """A hybrid host of four CPUs with one interrupt; it keeps what the tuner was asked for last."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_host(folder, {24: "0-3"})
        two_kinds(folder)
        self.desired: Desired = {}
        text = " CPU0 CPU1 CPU2 CPU3\n 24: 0 0 0 0 PCI-MSIX-0000:00:03.0 0-edge eth0\n"
        (folder / "proc/interrupts").write_text(text)

    def ask(
        self, desired: Desired | None = None, *, repair: bool = False, whole: bool = False
    ) -> Reply:
        del repair, whole
        if desired is not None:
            self.desired = desired
        return Reply(tunables=())

    def values(self, origin: str = "default/web/main") -> dict[str, str]:
        return {
            str(item): each.value for item, each in self.desired.items() if origin in each.origin
        }

    @asynccontextmanager
    async def serving(
        self, *namespaces: str, name: str = "containerd", version: str = "2.1.9", **spec: Any
    ) -> AsyncIterator[Served]:
        settings = {"reservedResources": {"cpu": "cpuset:0"}, **spec}
        settings["crioAnnotationNamespaces"] = list(namespaces)
        async with served(
            self.folder, HYBRID, ask_tuner=self.ask, name=name, version=version, **settings
        ) as up:
            yield up


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


async def explain(up: Served, name: str) -> Any:
    command = ["explain", name, "-o", "json", "--control-socket", str(up.socket)]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_in_a_named_namespace_exclusive_cpus_have_what_the_annotations_ask_for(host: Host) -> None:
    async def test() -> None:
        async with host.serving("def*", listening=False) as up:
            assert not await up.start(pod("web", "1", annotations=QUIET))
            (cpu,) = up.daemon.node.view.exclusive
            assert cpu == 1
            up.daemon.tuner_link.inform()
            assert host.values() == {
                "irq/24/affinity": "0,2-3",
                "cpu/1/resume_latency": "10",
                "cpufreq/1/governor": "performance",
            }
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            up.daemon.tuner_link.inform()
            assert not host.desired

    run(test)


def test_elsewhere_they_have_no_effect_and_explain_says_so(host: Host) -> None:
    async def test() -> None:
        async with host.serving("telco") as up:
            asked = {**QUIET, IRQ: "housekeeping"}
            assert not await up.start(pod("web", "1", annotations=asked))
            up.daemon.tuner_link.inform()
            assert not host.desired
            why = "no effect, because crioAnnotationNamespaces does not name namespace default"
            assert (await explain(up, "web/main"))["annotations"] == [
                f"annotations {IRQ}, {CSTATES}, {GOVERNOR}: {why}"
            ]

    run(test)


def test_where_cpus_are_not_set_they_have_no_effect_and_explain_says_so(host: Host) -> None:
    async def test() -> None:
        async with host.serving("*", pinCPU=False) as up:
            assert not await up.start(pod("web", "1", annotations=QUIET))
            up.daemon.tuner_link.inform()
            assert not host.desired
            (remark,) = (await explain(up, "web/main"))["annotations"]
            assert remark.endswith(": no effect, because pinCPU is false")

    run(test)


def test_cri_o_serves_its_annotations_itself_and_explain_says_so(host: Host) -> None:
    async def test() -> None:
        async with host.serving("*", name="cri-o", version="1.36.3") as up:
            asked = {**QUIET, IRQ: "housekeeping"}
            assert not await up.start(pod("web", "1", annotations=asked))
            up.daemon.tuner_link.inform()
            assert not host.desired
            assert (await explain(up, "web/main"))["annotations"] == [
                f"annotations {IRQ}, {CSTATES}, {GOVERNOR}: CRI-O serves them itself"
            ]

    run(test)


def test_a_value_that_cannot_be_served_is_refused_to_containers_with_exclusive_cpus(
    host: Host,
) -> None:
    asked = {IRQ: "housekeeping"}

    async def test() -> None:
        async with host.serving("*", listening=False) as up:
            (error,) = await up.start(pod("web", "1", annotations=asked))
            assert f"annotation {IRQ}: 'housekeeping' is not served here" in error
            assert not await up.start(pod("small", "500m", annotations=asked))

    run(test)


def test_they_change_the_governor_and_c_states_of_the_containers_class(host: Host) -> None:
    async def test() -> None:
        spec = {**CLASSES, "defaultExclusiveCPUClass": "deep"}
        async with host.serving("*", listening=False, **spec) as up:
            asked = {CSTATES: "enable", GOVERNOR: "performance"}
            assert not await up.start(pod("web", "1", annotations=asked))
            up.daemon.tuner_link.inform()
            assert host.values() == {
                "cpu/1/resume_latency": "0",
                "cpufreq/1/governor": "performance",
            }
            assert host.values("sharedPoolCPUClass") == {"cpufreq/2/epp": "balance_power"}

    run(test)


def test_the_preference_of_a_class_is_left_out_beside_the_governor_performance(host: Host) -> None:
    """The kernel permits no preference but 0 with it."""

    async def test() -> None:
        async with host.serving("*", listening=False, **CLASSES) as up:
            assert not await up.start(pod("web", "1", annotations={GOVERNOR: "performance"}))
            up.daemon.tuner_link.inform()
            assert host.values() == {"cpufreq/1/governor": "performance"}
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            assert not await up.start(pod("slow", "1", annotations={GOVERNOR: "powersave"}))
            up.daemon.tuner_link.inform()
            assert host.values("default/slow/main") == {
                "cpufreq/1/governor": "powersave",
                "cpufreq/1/epp": "balance_power",
            }

    run(test)


def test_our_own_annotations_come_before_those_of_cri_o(host: Host) -> None:
    async def test() -> None:
        async with host.serving("*", listening=False, **CLASSES) as up:
            ours = {
                "cpu-class.resource-policy.nri.io/pod": "deep",
                "irq-affinity.resource-policy.nri.io/pod": "sink",
            }
            assert not await up.start(pod("web", "1", annotations={**QUIET, **ours}))
            up.daemon.tuner_link.inform()
            assert host.values() == {
                "irq/24/affinity": "1",
                "cpu/1/resume_latency": "2",
                "cpufreq/1/governor": "powersave",
            }

    run(test)


def test_what_their_cpus_cannot_have_is_explained(host: Host) -> None:
    async def test() -> None:
        async with host.serving("*") as up:
            wrong = {GOVERNOR: "ondemand"}
            assert not await up.start(pod("web", "1", annotations=wrong))
            together = {GOVERNOR: "performance", CSTATES: "disable"}
            assert not await up.start(pod("half", "1", annotations=together))
            up.daemon.tuner_link.inform()
            half = up.runtime.container("half/main").id
            (cpu,) = up.daemon.node.view.placed[half].grant.own
            assert host.values("default/half/main") == {f"cpu/{cpu}/resume_latency": "n/a"}
            assert not host.values()
            texts = {
                name: [each["wanted"] for each in (await explain(up, name))["classes"]]
                for name in ("web/main", "half/main")
            }
            other = 5 - cpu  # 2 and 3 are set together
            assert texts == {
                "web/main": [
                    "governor: 'ondemand' is not a governor of CPUs 1 (performance, powersave)"
                ],
                "half/main": [
                    f"frequencies: CPUs {other}, which are in no class, are set together with these"
                ],
            }

    run(test)


def test_c_states_alone_are_no_question_of_frequencies(host: Host) -> None:
    async def test() -> None:
        async with host.serving("*", listening=False) as up:
            one, two = (pod(name, "1", annotations={CSTATES: "disable"}) for name in ("a", "b"))
            assert not await up.start(one, two)
            up.daemon.tuner_link.inform()
            assert not up.daemon.tuner_link.unmet
            assert Item(Kind.CPU, "1", "resume_latency") in host.desired

    run(test)

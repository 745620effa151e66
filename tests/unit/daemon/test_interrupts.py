"""Interrupts end to end: a daemon, a tuner, and /proc/irq as strict as the kernel's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.daemon import tuner_link
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.synthetic_devices import MAJOR
from nri_policy.plugin.sources import Sources
from nri_policy.simulation.device_manager import PluginDevice
from nri_policy.tuning.cpu_classes import Wishes, find_wishes
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.items import Item
from nri_policy.tuning.protocol import Reply
from tests.support import nodes
from tests.support.daemon import Served, pod
from tests.support.patience import HANGS
from tests.support.tunables import StrictFiles, TunedHost, irq, make_host

KEY = "irq-affinity.resource-policy.nri.io"
MACHINE = "package:1 core:4 pu:1"
AFFINITIES = {4: "0-3", 24: "1", 25: "0-3", 26: "2"}
TEXT = """\
       CPU0   CPU1   CPU2   CPU3
  4:      0      0      0      0  IO-APIC 4-edge ttyS0
 24:      0      0      0      0  PCI-MSIX-0000:00:03.0 0-edge virtio2-config
 25:      0      0      0      0  PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0
 26:      0      0      0      0  PCI-MSIX-0000:00:02.0 1-edge nvme0q1
"""


class Host(TunedHost):
    """A host of four CPUs with a tuner; interrupt 26 is managed by the kernel."""

    def __init__(self, folder: Path) -> None:
        make_host(folder, AFFINITIES)
        (folder / "proc/interrupts").write_text(TEXT)
        self.strict = StrictFiles(folder, managed=[26])
        super().__init__(folder, self.strict)

    def affinities(self) -> dict[str, str]:
        return {
            str(each): str(self.files.read(irq(each)))
            for each in [*map(str, AFFINITIES), "default"]
        }

    def serving(self, *machine: str, **given: Any) -> AbstractAsyncContextManager[Served]:
        settings = {"reservedResources": {"cpu": "cpuset:0"}, **given}
        return super().serving(*(machine or (MACHINE,)), **settings)


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


def test_interrupts_stay_away_from_exclusive_cpus_until_their_container_ends(host: Host) -> None:
    before = host.affinities()

    async def test() -> None:
        async with host.serving(listening=False, isolateInterrupts="exclusive") as up:
            link = up.daemon.tuner_link
            link.inform()
            assert host.affinities() == before, "no CPU is exclusive"
            assert not await up.start(pod("web", "2"))
            link.inform()
            own = up.daemon.node.view.exclusive
            left = str(up.daemon.node.view.layout.machine.online - own)
            assert host.affinities() == {
                "4": left,
                "24": "0" if 1 in own else "1",
                "25": left,
                "26": "2",  # the kernel's own
                "default": left,
            }
            assert link.count_tunables() == {("irq", "ok"): 4, ("irq", "unsupported"): 1}
            (managed,) = [each for each in link.tunables.values() if each.item == irq(26)]
            assert (managed.state, managed.why) == (ItemState.UNSUPPORTED, "not movable: EPERM")
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            link.inform()
            assert host.affinities() == before

    run(test)


def test_a_container_claims_and_masks_interrupts_and_explain_says_how_they_are(host: Host) -> None:
    text = "{claim: ['* virtio2-*'], mask: [4, 99]}"

    async def test() -> None:
        async with host.serving() as up:
            asked = {f"{KEY}/container.main": text}
            assert not await up.start(pod("web", "1", annotations=asked))
            up.daemon.tuner_link.inform()
            (own,) = up.daemon.node.view.exclusive
            found = host.affinities()
            assert (found["24"], found["25"]) == (str(own), str(own))
            assert str(own) not in found["4"]
            command = ["explain", "web", "-o", "json", "--control-socket", str(up.socket)]
            shown = await asyncio.to_thread(CliRunner().invoke, main, command)
            (document,) = json.loads(shown.output)
            items = document["classes"]
            assert {(each["item"], each["wanted"], each["state"]) for each in items} == {
                ("irq/24/affinity", str(own), "ok"),
                ("irq/25/affinity", str(own), "ok"),
                ("irq/4/affinity", found["4"], "ok"),
                ("", "interrupt 99: there is none here now", "note"),
            }
            command = ["containers", "-o", "json", "--control-socket", str(up.socket)]
            shown = await asyncio.to_thread(CliRunner().invoke, main, command)
            (container,) = json.loads(shown.output).values()
            assert container["classes"] == {"irq": "claim and mask"}

    run(test)


def plug(root: Path, address: str, numbers: list[int], *links: str) -> None:
    """Have a PCI function with these interrupts below *root*, at these *links* below sys, too."""
    function = root / "sys/devices/pci0000:00" / address
    (function / "msi_irqs").mkdir(parents=True)
    for number in numbers:
        (function / f"msi_irqs/{number}").touch()
    (function / "irq").write_text(f"{numbers[0]}\n")
    for each in (f"bus/pci/devices/{address}", *links):
        link = root / "sys" / each
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../" * each.count("/")) / function.relative_to(root / "sys"))


def test_a_container_claims_the_interrupts_of_its_devices_also_later_ones(host: Host) -> None:
    """The machine has one NUMA node: the device is near to no CPU in particular."""
    plug(host.folder, "0000:00:03.0", [24, 25], f"dev/char/{MAJOR}:0")
    sources = Sources(locator=Locator(host.folder, nodes.machine(MACHINE)))
    before = host.affinities()
    gpu = pod("gpu", "1", annotations={f"{KEY}/container.main": "{devices: ['*'], mask: ['*']}"})
    gpu["spec"]["containers"][0]["resources"]["limits"]["example.com/gpu"] = 1

    async def test() -> None:
        async with host.serving(listening=False, sources=sources) as up:
            device = PluginDevice(id="gpu0", file="/dev/dri/renderD128")
            up.runtime.devices.advertise({"example.com/gpu": [device]})
            assert not await up.start(gpu)
            link = up.daemon.tuner_link
            link.inform()
            (own,) = up.daemon.node.view.exclusive
            found = host.affinities()
            assert (found["24"], found["25"]) == (str(own), str(own))
            assert str(own) not in found["4"]
            make_host(host.folder, {30: "0-3"})
            line = " 30:      0      0      0      0  PCI-MSIX-0000:00:03.0 2-edge eth9\n"
            (host.folder / "proc/interrupts").write_text(TEXT + line)
            (host.folder / "sys/devices/pci0000:00/0000:00:03.0/msi_irqs/30").touch()
            link.inform()
            assert host.files.read(irq(30)) == str(own)
            shown, notes = link.of_origin("default/gpu/main", interrupts=True)
            assert {each.item.id for each in shown} == {"4", "24", "25", "26", "30"}
            assert not notes
            link.release()
            assert host.affinities() == before

    run(test)


def test_only_a_decision_that_may_have_something_set_has_the_tuner_informed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_link, "PAUSE", 0.0)

    async def test() -> None:
        loop, informed = asyncio.get_running_loop(), asyncio.Queue[set[str]]()
        async with host.serving() as up:
            link, inform = up.daemon.tuner_link, up.daemon.tuner_link.inform

            def note() -> None:
                seen = {*up.daemon.node.view.by_name()}
                inform()
                loop.call_soon_threadsafe(informed.put_nowait, seen)

            monkeypatch.setattr(link, "inform", note)
            running = asyncio.create_task(link.run(lambda _: nullcontext(enter_result=True)))
            while link._concerned:  # noqa: ASYNC110 - until the start is over
                await asyncio.sleep(0)
            while not informed.empty():
                informed.get_nowait()
            asked = {f"{KEY}/container.main": "{claim: [24]}"}
            assert not await up.start(pod("plain", "1"))
            assert not await up.start(pod("web", "1", annotations=asked))
            assert "default/web/main" in await informed.get(), "not for the one before"
            (own,) = up.daemon.node.view.by_name()["default/web/main"].grant.own
            assert host.affinities()["24"] == str(own)
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            while "default/web/main" in await informed.get():
                pass
            assert host.affinities()["24"] == "1", "its original"
            running.cancel()

    run(test)


def test_after_restarts_interrupts_are_computed_from_their_originals(host: Host) -> None:
    before = host.affinities()
    asked = {f"{KEY}/pod": "isolate"}

    async def test() -> None:
        async with host.serving(listening=False) as up:
            assert not await up.start(pod("web", "2", annotations=asked))
            up.daemon.tuner_link.inform()
            changed = host.affinities()
            assert changed != before
            host.start_tuner()
            up.daemon.tuner_link.tunables = {}  # as a new daemon
            up.daemon.tuner_link.inform()
            assert host.affinities() == changed
            up.daemon.tuner_link.release()
            assert host.affinities() == before

    run(test)


def test_the_first_look_at_interrupts_computes_the_values_of_cpus_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []

    def count(*given: Any) -> Wishes:
        computed.append(given)
        return find_wishes(*given)

    async def test() -> None:
        async with host.serving(listening=False) as up:
            asked = {f"{KEY}/pod": "isolate"}
            assert not await up.start(pod("web", "2", annotations=asked))
            monkeypatch.setattr("nri_policy.daemon.tuner_link.find_wishes", count)
            up.daemon.tuner_link.tunables = {}  # as a new daemon
            up.daemon.tuner_link.inform()
            assert len(computed) == 1

    run(test)


def test_nothing_is_computed_from_values_of_which_the_originals_are_unknown(host: Host) -> None:
    """The tuner does not run yet when it is asked for them, and does when it would be told."""
    asked = {f"{KEY}/pod": "{mask: [25], mode: claim-first}"}

    async def test() -> None:
        async with host.serving(listening=False) as up:
            assert not await up.start(pod("web", "1", annotations=asked))
            link = up.daemon.tuner_link
            link.inform()
            before = host.affinities()
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            assert not await up.start(pod("api", "2", annotations=asked))
            link.tunables, answers = {}, [True, False]  # as a new daemon

            def ask(*given: Any, **options: Any) -> Reply:
                host.away = answers.pop(0) if answers else False
                return host.ask(*given, **options)

            link._ask = ask
            link.inform()
            assert host.affinities() == before
            assert "no such file" in next(link.problems())
            link.inform()
            own = up.daemon.node.view.exclusive
            left = up.daemon.node.view.layout.machine.online - own
            assert host.affinities()["25"] == str(left)
            assert not [*link.problems()]

    run(test)


def test_a_new_interrupt_gets_its_due(host: Host) -> None:
    async def test() -> None:
        async with host.serving(listening=False, isolateInterrupts="exclusive") as up:
            assert not await up.start(pod("web", "2"))
            up.daemon.tuner_link.inform()
            make_host(host.folder, {30: "0-3"})
            line = " 30:      0      0      0      0  PCI-MSIX-0000:00:05.0 0-edge eth9\n"
            (host.folder / "proc/interrupts").write_text(TEXT + line)
            up.daemon.tuner_link.inform()
            own = up.daemon.node.view.exclusive
            left = str(up.daemon.node.view.layout.machine.online - own)
            assert host.files.read(irq(30)) == left

    run(test)


def test_interrupts_of_a_new_device_are_moved_when_its_driver_is_bound(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_link, "PERIOD", 1e6)
    news, written = asyncio.Queue[Callable[[], None]](), asyncio.Queue[str]()

    @contextmanager
    def listen(notify: Callable[[], None]) -> Iterator[bool]:
        news.put_nowait(notify)
        yield True

    async def test() -> None:
        loop = asyncio.get_running_loop()

        def note_write(item: Item, _: str) -> None:
            loop.call_soon_threadsafe(written.put_nowait, item.id)

        host.strict.after = note_write
        async with host.serving(listening=False, isolateInterrupts="exclusive") as up:
            assert not await up.start(pod("web", "2"))
            looking = asyncio.create_task(up.daemon.tuner_link.run(listen))
            notify = await news.get()
            while await written.get() != "default":  # the last one
                pass
            make_host(host.folder, {30: "0-3"})
            line = " 30:      0      0      0      0  PCI-MSIX-0000:00:05.0 0-edge nvme9q0\n"
            (host.folder / "proc/interrupts").write_text(TEXT + line)
            notify()
            while await written.get() != "30":
                pass
            left = up.daemon.node.view.layout.machine.online - up.daemon.node.view.exclusive
            assert host.files.read(irq(30)) == str(left)
            looking.cancel()

    run(test)


def test_the_annotation_is_refused_on_a_container_without_exclusive_cpus(host: Host) -> None:
    async def test() -> None:
        async with host.serving(listening=False) as up:
            for_one = {f"{KEY}/container.main": "isolate"}
            (refusal,) = await up.start(pod("web", "500m", annotations=for_one))
            assert "only exclusive CPUs claim or mask interrupts" in refusal
            assert not await up.start(pod("api", "500m", annotations={f"{KEY}/pod": "isolate"}))

    run(test)


def test_without_a_tuner_the_daemon_says_what_is_not_set(host: Host) -> None:
    async def test() -> None:
        async with host.serving(listening=False) as up:
            link = up.daemon.tuner_link
            host.away = True
            link.inform()
            assert [*link.problems()] == [], "nothing asks for a tuner"
            asked = {f"{KEY}/pod": "isolate"}
            assert not await up.start(pod("web", "1", annotations=asked))
            link.inform()
            assert [*link.problems()] == [
                "CPU classes, interrupts and RDT partitions are not set: tuner.sock: no such file"
            ]

    run(test)

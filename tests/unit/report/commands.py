"""Every document that the program prints, of nodes that are the same each time.

python -m tests.unit.report.commands     # takes the golden documents anew
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from click.testing import CliRunner

from nri_policy.audit.deviations import CpusetState, KernelState
from nri_policy.cli import main
from nri_policy.control.client import connected
from nri_policy.daemon.daemon import Daemon
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.report import encode
from nri_policy.settings_sources.settings_file import SettingsFile
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.tuning.items import Wish
from nri_policy.tuning.server import open_tuner
from tests.support.daemon import Served, pod, served
from tests.support.nodes import SMALL
from tests.support.tunables import StrictFiles, answering, irq, make_host

PROJECT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("golden")
TIERED = (
    "package:2(hbm=8GiB pmem=256GiB) numa:2(memory=64GiB) l3:2 core:2 pu:2 isolated=6-7 offline=31"
)
HEAD = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "TopologyAwarePolicy",
    "metadata": {"name": "default"},
}
SPEC: dict[str, Any] = {"reservedResources": {"cpu": "750m"}, "preferIsolatedCPUs": False}
NOW = 1.7e9  # seconds since the epoch

AFFINITY = """\
main:
- scope: {operator: AlwaysTrue}
  match: {key: pod/name, operator: Equals, values: [own]}
  weight: 7
"""
PODS = (
    pod("guest"),
    pod("own", "2"),
    pod("some", "500m", shared=True),
    pod("mixed", "1500m"),
    pod("near", "1", annotations={"resource-policy.nri.io/affinity": AFFINITY}),
    pod("dns", "100m", shared=True, namespace="kube-system"),
    pod("kept", "1", annotations={"cpu.preserve.resource-policy.nri.io": "true"}),
    pod("thread", "2", annotations={"hide-hyperthreads.resource-policy.nri.io": "true"}),
    pod("huge", "99"),
    pod("odd", "1", annotations={"memory-type.resource-policy.nri.io/container.mian": "dram"}),
    pod("wrong", "1", annotations={"hide-hyperthreads.resource-policy.nri.io": "maybe"}),
    pod("gone", "1"),
)


class Astray(SimulatedCgroups):
    """A kernel in which one container runs on other CPUs than were decided."""

    def observe(self, container_id: str, cgroup: str, **how: Any) -> KernelState | None:
        observed = super().observe(container_id, cgroup, **how)
        (guest,) = (each for each in self._runtime.containers if each.key == "default/guest/main")
        if observed is None or container_id != guest.id:
            return observed
        return KernelState(
            cpus=CpusetState(written=CPUSet((1,)), effective=CPUSet((1,))),
            mems=observed.mems,
            threads={7: CPUSet((3,))},
        )


def printed(*args: object, form: str = "json", given: str = "") -> str:
    """Return what the program prints, whether the answer is yes or no."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(
        main, [*map(str, args), "-o", form], input=given, prog_name="nri-policy"
    )
    assert result.stdout, f"{args}: {result.output} {result.exception}"
    return result.stdout


def documents(form: str = "json") -> dict[str, str]:
    """Return what is printed, by the name of the golden file."""
    with TemporaryDirectory() as folder:
        found = {
            **dict(_alone(Path(folder), form)),
            **asyncio.run(_beside(Path(folder), form)),
        }
        return {
            name: text.replace(folder, "FOLDER").replace(version("nri-policy"), "VERSION")
            for name, text in found.items()
        }


def _tunables(folder: Path, form: str) -> str:
    """Return what is printed of a tuner that has moved an interrupt, and cannot move another."""
    root, path = make_host(folder / "tuned", {24: "0-3"}), folder / "tuner.sock"
    wishes = {irq(24): Wish("1", ("default/own/main",)), irq(99): Wish("1", ("default/own/main",))}
    with open_tuner(root, folder / "tuner", StrictFiles) as tuner, answering(tuner, path):
        tuner.set(wishes, repair=False)
        return printed("tunables", "--tuner-socket", path, form=form)


def _alone(folder: Path, form: str) -> Iterator[tuple[str, str]]:
    """Yield what commands print that ask no daemon."""
    spec = SPEC | {"availableResources": {"cpu": "cpuset:0-13"}}
    settings = _written(folder / "settings.yaml", {**HEAD, "spec": spec})
    wrong = _written(folder / "wrong.yaml", {**HEAD, "spec": {"pinCPU": "maybe"}})
    yield "topology", printed("topology", "--synthetic", SMALL, "--settings", settings, form=form)
    yield "topology-tiered", printed("topology", "--synthetic", TIERED, form=form)
    devices = PROJECT / "tests/unit/hardware/data/qemu-pci-locality.tar.xz"
    yield "topology-devices", printed("topology", "--capture", devices, form=form)
    yield "config-check", printed("config", "check", settings, form=form)
    yield (
        "config-check-machine",
        printed("config", "check", settings, "--synthetic", SMALL, form=form),
    )
    yield "config-check-wrong", printed("config", "check", wrong, form=form)
    demo = PROJECT / "configs/demo.yaml"
    yield "simulate", printed("simulate", demo, "--synthetic", SMALL, form=form)
    steps = [
        {"settings": SPEC},
        {"apply": [pod("own", "2"), pod("huge", "99")]},
        {"expect": {"own/main": {"cpus": "1", "pool": "root"}}},
        {"expect": {"error": "no room", "nobody/main": None}},
    ]
    scenario = _written(folder / "scenario.yaml", steps)
    yield from _of_a_cluster(folder, form)
    yield "tunables", _tunables(folder, form)
    yield "simulate-fails", printed("simulate", scenario, "--synthetic", SMALL, form=form)


def _of_a_cluster(folder: Path, form: str) -> Iterator[tuple[str, str]]:
    """Yield what commands print that are about many nodes."""
    groups = PROJECT / "configs/groups"
    cluster = ("--synthetic", "zone:2 rack:4 host:16 cpu:64 memory:256Gi socket:2 numa:2")
    both = ("-f", groups / "training.yaml", "-f", groups / "leader.yaml")
    small = ("--synthetic", "zone:2 rack:2 host:2 cpu:16 memory:64Gi")
    yield "cluster-tree", printed("cluster", "tree", *small, form=form)
    yield "cluster-place", printed("cluster", "place", *both, *cluster, form=form)
    yield "cluster-place-refused", printed("cluster", "place", *both, *small, form=form)
    yield "cluster-explain", printed("cluster", "explain", *both[:2], *cluster, form=form)
    yield "cluster-fit", printed("cluster", "fit", *both[:2], *small, form=form)
    crowded = ("--cluster", groups / "crowded.yaml")
    yield "cluster-plan", printed("cluster", "plan", "render", *crowded, form=form)
    failure = groups / "failure.yaml"
    yield "cluster-simulate", printed("cluster", "simulate", failure, *cluster, form=form)
    waiting: dict[str, Any] = {
        "kind": "PlacementGroup",
        "metadata": {"name": "job-a", "creationTimestamp": "2026-08-01T00:00:00Z"},
        "spec": {"podSets": [{"name": "main", "count": 2}], "priority": 3},
        "status": {"state": "Waiting", "message": "1 of 2 pods are missing"},
    }
    known = _written(folder / "groups.yaml", waiting)
    yield "cluster-top", printed("cluster", "top", "--cluster", known, form=form)


async def _beside(folder: Path, form: str) -> dict[str, str]:
    """Return what commands print that ask a daemon, and what is replayed of it."""
    found: dict[str, str] = {}

    async def ask(socket: Path, name: str, *args: object, given: str = "") -> None:
        found[name] = await asyncio.to_thread(
            printed, *args, "--control-socket", socket, form=form, given=given
        )

    for name, machine in ("small", SMALL), ("tiered", TIERED):
        home = folder / name
        home.mkdir()
        async with _lived(home, machine) as node:
            await _at_rest(node.daemon)
            for command in ("status", "pools", "containers", "audit", "nrt"):
                await ask(node.socket, f"{name}-{command}", command)
            await ask(node.socket, f"{name}-config-show", "config", "show")
            for each in (
                "own",
                "mixed/main",
                "near",
                "huge",
                "odd",
                "wrong",
                "gone",
                "guest",
                "kept",
                "kube-system/dns",
            ):
                await ask(node.socket, f"{name}-explain-{each.replace('/', '-')}", "explain", each)
            await _ask_what_if(node.socket, name, ask)
            if form == "json":
                found[f"{name}-journal"] = await asyncio.to_thread(_journal, node.socket)
        replayed = home / "settings.yaml"
        _written(replayed, {**HEAD, "spec": SPEC | {"preferSharedCPUs": True}})
        found[f"{name}-history"] = await asyncio.to_thread(
            printed, "history", "--journal", home, form=form
        )
        found[f"{name}-replay"] = await asyncio.to_thread(printed, "replay", home, form=form)
        found[f"{name}-replay-otherwise"] = await asyncio.to_thread(
            printed, "replay", home, "--settings", replayed, form=form
        )
    return found


async def _at_rest(daemon: Daemon) -> None:
    """Wait until no change is under way: containers have their CPUs, or the kernel refuses."""
    while daemon.executor.state.in_flight or (await daemon.auditor.check()).changing:  # noqa: ASYNC110 - nothing says so
        await asyncio.sleep(0.01)


async def _ask_what_if(socket: Path, name: str, ask: Any) -> None:
    pods = yaml.safe_dump_all([pod("new", "3"), pod("more", "1", shared=True)])
    init = pod("first", "2")
    init["spec"]["initContainers"] = [{"name": "before", "resources": {"limits": {"cpu": "1"}}}]
    other = yaml.safe_dump({**HEAD, "spec": SPEC | {"reservedResources": {"cpu": 3}}})
    refused = yaml.safe_dump({**HEAD, "spec": {"reservedResources": {"cpu": 99}}})
    for case, given, args in (
        ("pods", pods, ("-f", "-")),
        ("init", yaml.safe_dump(init), ("-f", "-")),
        ("replicas", yaml.safe_dump(pod("new", "3")), ("-f", "-", "--replicas", "9")),
        ("max", yaml.safe_dump(pod("new", "3")), ("-f", "-", "--replicas", "max")),
        ("settings", other, ("--settings", "-")),
        ("refused", refused, ("--settings", "-")),
    ):
        await ask(socket, f"{name}-what-if-{case}", "what-if", *args, given=given)


@asynccontextmanager
async def _lived(folder: Path, machine: str) -> AsyncIterator[Served]:
    """Yield a daemon that many things have happened to."""
    settings = _written(folder / "config.yaml", {**HEAD, "spec": {"pinCPU": "maybe"}})
    async with served(
        folder,
        machine,
        before=[pod("early", "1"), pod("older", "300m", shared=True)],
        clock=Clock(date=lambda: NOW),
        cgroups=Astray,
        load=SettingsFile(settings).load,
        unlimitedBurstable="numa",
        controllableInterrupts=[],
    ) as node:
        await node.start(*PODS)
        await node.runtime.delete_pod(node.runtime.pod("gone"))
        await _resize(node.runtime, "own", 99_000)
        await _resize(node.runtime, "mixed", 2_500)
        await node.daemon.reloads.reload()
        yield node


async def _resize(runtime: EmbeddedRuntime, name: str, milli: int) -> None:
    change = ResourceChange(requests=Amounts(cpu=milli), limits=Amounts(cpu=milli))
    try:
        await runtime.resize(runtime.pod(name), "main", change)
    except CRIError:
        assert milli == 99_000


def _journal(socket: Path) -> str:
    with connected(socket) as client:
        return encode(client.journal())


def _written(path: Path, document: object) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def take() -> None:
    """Make what is printed now the golden documents."""
    GOLDEN.mkdir(exist_ok=True)
    for name, text in documents().items():
        shown = json.dumps(json.loads(text), indent=1)
        (GOLDEN / f"{name}.json").write_text(f"{shown}\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    take()

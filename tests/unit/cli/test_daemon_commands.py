"""The commands that ask the running daemon."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.audit.cpu_use import CpuUse
from nri_policy.cli import daemon_option, main
from nri_policy.cli.node.audit import _draw
from nri_policy.control.client import connected
from nri_policy.foundation.clock import Clock
from nri_policy.manifests.pod import PodManifest, read_pod
from nri_policy.report import AuditReport
from nri_policy.settings import Settings
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import nodes, rooms
from tests.support.daemon import pod, served
from tests.unit.audit.host import Cgroup, Root

MACHINE = "package:2 numa:2 core:2 pu:2"

ANSWER = """\
database/main: placed on NUMA node #1
  CPUs      4-6, exclusive, 1 core and 1 thread on NUMA node #1
  memory    node 1, dram
  asked     3 CPUs → got 3 exclusive
  quota     none (exclusive)
  why here  NUMA nodes #1, #2 and #3 are equally good, and the lowest number wins (more: --why)"""
EXPLAINED = """\
database/main: placed on NUMA node #1
  CPUs      4-6, exclusive, 1 core and 1 thread on NUMA node #1
  memory    node 1, dram
  asked     3 CPUs → got 3 exclusive
  quota     none (exclusive)
  why here  NUMA nodes #1, #2 and #3 are equally good, and the lowest number wins

   pool          memory nodes  depth    left   id  why not
*  NUMA node #1             1      2   1 CPU  [1]
   NUMA node #2             1      2   1 CPU    3  equal; the lower id wins
   NUMA node #3             1      2   1 CPU    4  equal; the lower id wins
   NUMA node #0             1      2  0 CPUs    0  less suitable room is left: 0 CPUs, not 1 CPU
   socket #1                2      1  5 CPUs    5  memory on more nodes: 2, not 1
and 2 pools more: --all shows them

Compared from left to right; the cell in [ ] decided.
  memory nodes (memory_tightness): on how many nodes its memory would be; fewer are better
  depth: level in the tree; deeper is better
  left (capacity): for exclusive CPUs: CPUs left after this request; more are better (with packing:
  tight, fewer). For shared CPUs: containers that share there; fewer are better, then more CPU left
  id: number of the pool; the lower one wins
Equal in all pools with room: isolated, affinity, near devices, depth by devices, memory kind,
  memory to grow, CPU to grow, CPU priority, others' memory, spread, others."""
FIELDS = {"pool", "cpus", "exclusive", "shared_milli", "isolated", "mems", "shares", "state"} | {
    "qos",
    "sort",
}


def run(socket: Path, *args: str, given: str = "") -> Result:
    """Return what the program says; in the test's own process, and on this thread."""
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(
        main, [*args, "--control-socket", str(socket)], input=given, prog_name="nri-policy"
    )


def beside_a_daemon(
    folder: Path,
    check: Callable[[Path], None],
    *pods: dict[str, Any] | PodManifest,
    machine: str = MACHINE,
    **spec: Any,
) -> None:
    """Run *check*, which blocks, with the socket of a daemon that has placed *pods*."""

    async def both() -> None:
        async with served(folder, machine, **spec) as node:
            await node.start(*pods)
            await asyncio.to_thread(check, node.socket)

    asyncio.run(both())


def lines(result: Result) -> list[str]:
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_explain_opens_with_what_a_container_has(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        assert "\n".join(lines(run(control, "explain", "database/main"))) == ANSWER

    beside_a_daemon(tmp_path, check, pod("database", "3"))


class Busy(SimulatedCgroups):
    """Containers use more the longer their names are, and are throttled half of the time."""

    seconds = 0.0

    def cpu_use(self, cgroups: Iterable[str]) -> dict[str, CpuUse]:
        names = {each.message.linux.cgroups_path: each.pod for each in self._runtime.containers}
        return {
            each: CpuUse(
                seconds=self.seconds * len(names[each].message.name) / 10,
                periods=int(10 * self.seconds),
                throttled=int(5 * self.seconds),
                throttled_seconds=self.seconds / 4,
                waited={1: self.seconds / 10},
            )
            for each in cgroups
        }


def test_explain_has_the_last_minute_and_the_busiest_neighbours(tmp_path: Path) -> None:
    made: list[Busy] = []

    def busy(runtime: EmbeddedRuntime) -> Busy:
        made.append(Busy(runtime))
        return made[0]

    async def play() -> None:
        names = ("web", "batch", "report", "x", "analytics")
        machine = "package:1 core:4 pu:1"
        async with served(tmp_path, machine, cgroups=busy) as node:
            await node.start(*(pod(name, "100m") for name in names))
            node.daemon.cpu_use._clock = Clock(now=lambda: made[0].seconds)
            await node.daemon.cpu_use.sample()
            made[0].seconds = 60.0
            said = await asyncio.to_thread(run, node.socket, "explain", "web/main")
            assert "used 0.30 CPUs; throttled in 300 of 600 periods, for 15.0 s; its threads" in (
                " ".join(said.stdout.split())
            )
            assert "waited 6.0 s for a CPU (in the last 60 s)" in " ".join(said.stdout.split())
            assert (
                "beside it default/analytics/main 0.90 CPUs, default/report/main 0.60 CPUs,"
                " default/batch/main 0.50 CPUs why here" in " ".join(said.stdout.split())
            )
            found = await asyncio.to_thread(run, node.socket, "explain", "web/main", "-o", "json")
            recent = json.loads(found.stdout)["answer"]["recent"]
            assert (recent["seconds"], recent["waited_seconds"]) == (60, 6)
            assert len(recent["neighbours"]) == 3

    asyncio.run(play())


def test_explain_compares_the_pools_if_asked_to(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        result = run(control, "explain", "database/main", "--why")
        assert result.exit_code == 0
        assert "\n".join(lines(result)) == EXPLAINED

    beside_a_daemon(tmp_path, check, pod("database", "3"))


def test_explain_shows_every_pool_if_asked_to(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        shown = lines(run(control, "explain", "database/main", "--all"))
        rows = shown[8 : shown.index("Compared from left to right; the cell in [ ] decided.") - 1]
        assert len(rows) == 7
        assert rows[-1].split() == ["root", "4", "0", "12", "CPUs", "6", *MORE_NODES]

    beside_a_daemon(tmp_path, check, pod("database", "3"))


MORE_NODES = ["memory", "on", "more", "nodes:", "4,", "not", "1"]


def test_explain_draws_the_pool_tree_with_the_decision(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        drawn = fromstring(run(control, "explain", "database", "-o", "svg").stdout)
        pools = {
            each.get("data-pool"): each.get("class")
            for each in drawn.iter()
            if each.get("data-pool")
        }
        assert [name for name, class_ in pools.items() if class_ == "pool chosen"] == [
            "NUMA node #1"
        ]
        assert len(pools) == 7
        texts = [each.text for each in drawn.iter() if each.text]
        assert "memory on more nodes: 4, not 1" in texts
        assert "NUMA node #1 · CPUs 4-7" in texts

    beside_a_daemon(tmp_path, check, pod("database", "3"))


def test_the_documentation_shows_a_real_explanation() -> None:
    page = Path(__file__).parents[3] / "docs/explain.md"
    assert ANSWER in page.read_text()
    assert EXPLAINED in page.read_text()


def test_explain_shows_shortfalls_and_that_it_was_refused(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        shown = lines(run(control, "explain", "huge"))
        assert shown[0].startswith("huge/main: refused: no pool has room for 20 exclusive CPUs")
        assert [line.split() for line in shown[2:5]] == [
            ["pool", "why", "not"],
            ["root", "5", "CPUs", "short"],
            ["socket", "#1", "12", "CPUs", "short"],
        ]
        assert "Notes" not in shown, "they say the same again"

    beside_a_daemon(tmp_path, check, pod("huge", "20"))


def test_explain_says_who_drew_the_container(tmp_path: Path) -> None:
    near = """\
- scope: {operator: AlwaysTrue}
  match: {key: pod/name, operator: Equals, values: [there]}
  weight: 7
"""
    near_it = {"resource-policy.nri.io/affinity": f"main:\n{near}"}

    def check(control: Path) -> None:
        shown = lines(run(control, "explain", "new"))
        assert shown[5].split(maxsplit=2)[2] == "affinities favour it most (more: --why)"
        assert shown[shown.index("Affinities") + 1] == (
            "  pulled by default/there/main (+7) on NUMA node #1"
        )

    beside_a_daemon(tmp_path, check, pod("there", "2"), pod("new", "1", annotations=near_it))


def test_explain_shows_annotations_that_do_nothing(tmp_path: Path) -> None:
    odd = {
        "memory-type.resource-policy.nri.io/container.mian": "dram",
        "prefer-isolated-cpu.resource-policy.nri.io/pod": "true",
    }

    def check(control: Path) -> None:
        for name in ("new", "huge"):
            shown = " ".join(run(control, "explain", name).stdout.split())
            assert "Annotations annotation 'prefer-isolated-cpu.resource-policy.nri.io" in shown
            assert "did you mean 'prefer-isolated-cpus'?" in shown
            assert "the pod has had no container 'mian' so far; did you mean 'main'?" in shown
        assert (
            json.loads(run(control, "explain", "fine/main", "-o", "json").stdout)["annotations"]
            == []
        )

    beside_a_daemon(
        tmp_path,
        check,
        pod("new", "1", annotations=odd),
        pod("huge", "99", annotations=odd),
        pod("fine"),
    )


def test_explain_gives_values_with_their_units(tmp_path: Path) -> None:
    limited = pod("limited", "500m", shared=True)
    limited["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "6", "memory": "1Mi"}

    def check(control: Path) -> None:
        shown = {
            name: " ".join(run(control, "explain", name, "--why").stdout.split())
            for name in ("limited", "open", "guest")
        }
        assert "* socket #1 1500m missing 2 1 [0 others, 7500m]" in shown["limited"]
        assert "less room to burst: 2 missing, not 1500m missing" in shown["limited"]
        assert "less room to burst: 1 level off, not 0 levels off" in shown["open"]
        assert "less suitable room is left: 3, not 4" in shown["guest"]

    beside_a_daemon(tmp_path, check, pod("guest"), limited, pod("open", "500m", shared=True))


def test_what_if_warns_of_annotations_that_do_nothing_once(tmp_path: Path) -> None:
    odd = {
        "memory-type.resource-policy.nri.io/container.mian": "dram",
        "irq-affinit.resource-policy.nri.io/pod": "isolate",
    }

    def check(control: Path) -> None:
        manifest = json.dumps(pod("new", "1", annotations=odd))
        result = run(control, "what-if", "-f", "-", "--replicas", "2", "-o", "json", given=manifest)
        warnings = json.loads(result.stdout)["warnings"]
        assert [each for each in warnings if "mian" in each] == [
            (
                "default/new-1/main: annotation memory-type.resource-policy.nri.io/container.mian:"
                " the pod has no container 'mian'; did you mean 'main'?"
            )
        ]
        assert sum("new-1/main: annotation 'irq-affinit." in each for each in warnings) == 1
        several = pod("several", annotations=odd | {"cpu.preserv.resource-policy.nri.io": "true"})
        several["spec"]["containers"] = [{"name": name} for name in ("main", "log", "mesh")]
        result = run(control, "what-if", "-f", "-", "-o", "json", given=json.dumps(several))
        warnings = json.loads(result.stdout)["warnings"]
        assert len(warnings) == 3
        assert {each.partition(": ")[0] for each in warnings} == {"default/several"}

    beside_a_daemon(tmp_path, check)


def test_what_if_tells_shared_cpus_from_exclusive_ones_and_affinities_without_effect(
    tmp_path: Path,
) -> None:
    match = "match: {key: pod/name, operator: Equals, values: [guest]}"
    near = {"resource-policy.nri.io/affinity": f"main: [{{{match}}}]"}
    manifests = json.dumps(
        {
            "kind": "List",
            "items": [
                {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}},
                pod("own", "2"),
                pod("shared", "2", shared=True),
                pod("part", "500m", annotations=near),
            ],
        }
    )

    def check(control: Path) -> None:
        shown = lines(run(control, "what-if", "-f", "-", given=manifests))
        heading = next(line for line in shown if line.startswith("container"))
        assert "exclusive" in heading.split()
        text = " ".join(shown)
        assert "shared: only Guaranteed" in text
        assert "note: left out, because no pods of theirs are known here: Service web" in text
        assert "shared: it asks for less" not in text
        assert "note: default/part/main: no container that was there matches its affinities" in text

    beside_a_daemon(tmp_path, check, pod("guest"))


def test_what_if_takes_several_files_of_pods_and_one_of_settings(tmp_path: Path) -> None:
    first, second, broken, settings = (
        tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml", "map.yaml")
    )
    first.write_text(json.dumps(pod("one", "1")))
    second.write_text(yaml.safe_dump(pod("two", "much")))
    broken.write_text("\na: b: c")
    policy = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "TopologyAwarePolicy",
        "metadata": {"name": "default"},
        "spec": {"reservedResources": {"cpu": 2}},
    }
    data = {"config.yaml": json.dumps(policy)}
    settings.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "data": data}))

    def check(control: Path) -> None:
        def asked(*args: str | Path) -> Result:
            return run(control, "what-if", *map(str, args))

        wrong = asked("-f", first, "-f", second)
        assert wrong.exit_code == 2
        assert f"{first}, {second}: object 2: pod 'two': " in wrong.stderr
        assert f"{broken}: line 2, column 5: " in asked("-f", first, "-f", broken).stderr
        second.write_text(yaml.safe_dump(pod("two", "1")))
        both = asked("-f", first, "-f", second, "--settings", settings)
        assert lines(both)[:3] == [
            "These settings would be accepted.",
            "one would fit.",
            "two would fit.",
        ]
        twice = asked("--settings", settings, "--settings", settings)
        assert (twice.exit_code, "2 files with --settings" in twice.stderr) == (2, True)

    beside_a_daemon(tmp_path, check)


def test_manifests_without_sense_are_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("a: b: c")

    def check(control: Path) -> None:
        result = run(control, "what-if", "-f", str(file))
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{file}: line 1, column 5: a value that contains" in result.stderr

    beside_a_daemon(tmp_path, check)


def test_explain_of_a_pod_tells_each_of_its_containers(tmp_path: Path) -> None:
    two = pod("two", "1")
    two["spec"]["containers"].append({**two["spec"]["containers"][0], "name": "second"})

    def check(control: Path) -> None:
        starts = [line.partition(":")[0] for line in lines(run(control, "explain", "two"))]
        assert {"two/main", "two/second"} <= {*starts}
        documents = json.loads(run(control, "explain", "two", "-o", "json").stdout)
        assert [each["container"] for each in documents] == [
            "default/two/main",
            "default/two/second",
        ]
        one = json.loads(run(control, "explain", "two/second", "-o", "json").stdout)
        assert one == documents[1]
        assert yaml.safe_load(run(control, "explain", "two/second", "-o", "yaml").stdout) == one

    beside_a_daemon(tmp_path, check, two)


def test_a_pod_that_is_not_there_is_a_no(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        result = run(control, "explain", "owns")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "nri-policy: no pod or container 'owns'; did you mean 'own'?\n"

    beside_a_daemon(tmp_path, check, pod("own", "1"))


def test_status_pools_and_containers(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        status = json.loads(run(control, "status", "-o", "json").stdout)
        assert (status["runtime"], status["containers"], status["refused"]) == (
            "containerd 2.1.9",
            2,
            1,
        )
        assert status["memory_bytes"] > 1 << 20
        assert status["cpu_seconds"] > 0
        shown = lines(run(control, "status"))
        assert "CPUs exclusive      4-5" in shown
        assert "refused             1: containers says why" in shown
        assert any(
            re.fullmatch(r"daemon's usage +\S+ MiB of memory, .* s of CPU time.*", each)
            for each in shown
        )
        pools = json.loads(run(control, "pools", "-o", "json").stdout)
        assert {"shared_milli_granted", "shared_milli_allocatable", "exclusive"} <= pools[0].keys()
        drawn = lines(run(control, "pools"))
        head = next(at for at, line in enumerate(drawn) if line.startswith("pool "))
        assert "│ │ r·                    │ │ A·                    │ │" in drawn[:head]
        assert [line.split()[:4] for line in drawn[head + 1 : head + 3]] == [
            ["root", "0-15", "4-5", "500m"],
            ["├─", "socket", "#0", "0-7"],
        ]
        containers = json.loads(run(control, "containers", "-o", "json").stdout)
        assert all(fields.keys() >= FIELDS for fields in containers.values())
        table = lines(run(control, "containers"))
        own = ["A", "own/main", "Guaranteed", "2", "4-5", "4-5", "1"]
        assert own in [line.split()[:7] for line in table]
        assert ["A", "own/main"] in [line.split()[:2] for line in drawn[:head]]
        assert any(line.startswith("refused: huge/main: no pool has room for") for line in table)

    beside_a_daemon(
        tmp_path, check, pod("own", "2"), pod("some", "500m", shared=True), pod("huge", "99")
    )


def test_pools_show_how_many_huge_pages_are_available_where_the_node_has_any(
    tmp_path: Path,
) -> None:
    def check(control: Path) -> None:
        drawn = lines(run(control, "pools"))
        head = next(at for at, line in enumerate(drawn) if line.startswith("pool "))
        assert drawn[head].endswith("huge pages available")
        assert [line.rpartition("  ")[2].strip() for line in drawn[head + 1 : head + 4]] == [
            "64 of 64 × 2Mi, 12 of 16 × 1Gi",
            "64 of 64 × 2Mi, 0 of 0 × 1Gi",
            "0 of 0 × 2Mi, 12 of 16 × 1Gi",
        ]
        pages = json.loads(run(control, "pools", "-o", "json").stdout)[-1]["hugepages"]
        assert pages == [
            {"size": "2Mi", "count": 64, "free": 64},
            {"size": "1Gi", "count": 16, "free": 12},
        ]

    huge = pod("huge", "2")
    huge["spec"]["containers"][0]["resources"]["limits"]["hugepages-1Gi"] = "4Gi"
    machine = "package:1 numa:2(hugepages-1Gi=0,16 hugepages-2Mi=64,0) core:4"
    beside_a_daemon(tmp_path, check, huge, machine=machine)


def test_the_legend_below_the_pools_names_the_tenants_of_a_room(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        drawn = [line.split()[:2] for line in lines(run(control, "pools"))]
        assert [line for line in drawn if line[1:] and line[1].startswith("shop/")] == [
            ["A", "shop/main"],
            ["B", "shop/log"],
            ["B", "shop/mesh"],
        ]

    shop = pod("shop", "2", annotations=rooms.ROOM)
    half = {"limits": {"cpu": "500m", "memory": "1Mi"}}
    shop["spec"]["containers"] += [{"name": n, "resources": half} for n in ("log", "mesh")]
    beside_a_daemon(tmp_path, check, shop)


def test_status_says_what_became_of_the_latest_settings(tmp_path: Path) -> None:
    def load() -> Settings:
        return nodes.settings(reservedResources={"cpu": next(reserved)})

    async def both() -> None:
        async with served(tmp_path, MACHINE, load=load) as node:
            await asyncio.to_thread(check, node.socket, "")
            await node.daemon.reloads.reload()
            await asyncio.to_thread(check, node.socket, "test was accepted")
            await node.daemon.reloads.reload()
            await asyncio.to_thread(check, node.socket, "refused: test: reservedResources.cpu")

    def check(control: Path, outcome: str) -> None:
        shown = [line for line in lines(run(control, "status")) if "latest reload" in line]
        assert bool(shown) == bool(outcome)
        assert all(outcome in line for line in shown)

    reserved = iter((1, 99))
    asyncio.run(both())


def test_audit_ends_with_1_where_anything_is_not_as_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.audit.auditor.GRACE", 0.0)
    root = Root(tmp_path, 1)

    async def both() -> None:
        async with served(tmp_path, MACHINE) as node:
            await node.start(pod("own", "2"), pod("guest"))
            own, guest = (
                root.cgroup(
                    folder_of(each.message.linux.cgroups_path) or "",
                    str(each.cpus),
                    str(each.mems),
                    thread=thread,
                )
                for thread, each in enumerate(node.runtime.containers, 70)
            )
            await asyncio.to_thread(check, node.socket, own, guest)

    def check(control: Path, own: Cgroup, guest: Cgroup) -> None:
        clean = run(control, "audit")
        assert (clean.exit_code, clean.stdout) == (
            0,
            "2 containers are as decided.\n\nNo container may run on exclusive CPUs of another.\n",
        )
        own.set("cpus", "0-15")
        shutil.rmtree(guest.folder)
        result = run(control, "audit")
        assert result.exit_code == 1
        shown = lines(result)
        assert shown[0] == "1 of 1 containers are not as decided:"
        assert shown[3].split()[:4] == ["own/main", "cpus", "4-5", "0-15"]
        assert "Cgroups not found: guest/main" in shown
        again = run(control, "audit", "-o", "json")
        document = json.loads(again.stdout)
        assert again.exit_code == 1
        assert document == yaml.safe_load(run(control, "audit", "-o", "yaml").stdout) | {
            "time": document["time"]
        }
        assert (document["mode"], document["audited"]) == ("report", 1)
        (drift,) = document["drifts"]
        assert drift == {
            "container": "default/own/main",
            "what": "cpus",
            "decided": "4-5",
            "found": "0-15",
            "threads": [],
            "reason": "its cgroup was changed, or never updated",
            "since": drift["since"],
            "tries": 0,
            "repairable": True,
        }

    asyncio.run(both())


def test_an_audit_that_checks_no_container_does_not_call_any_as_decided(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        first, *others = lines(run(control, "audit"))
        assert first == "No container is checked."
        assert "note: pinCPU is false and pinMemory is false" in " ".join(others)

    beside_a_daemon(tmp_path, check, pod("own", "2"), pinCPU=False, pinMemory=False)


def test_an_audit_names_those_about_which_it_cannot_say_anything_yet() -> None:
    report = AuditReport(
        mode="report",
        time=0.0,
        audited=2,
        unseen=(),
        changing=("default/own/main", "kube-system/dns/main"),
        threads_hidden=(),
        drifts=(),
    )
    assert [str(each) for each in _draw(report)] == [
        "2 containers are as decided.",
        "Not checked, because a change of them is in progress: own/main, kube-system/dns/main",
    ]


def test_without_containers_the_table_says_so(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        assert run(control, "containers").stdout == "no containers\n"
        assert json.loads(run(control, "containers", "-o", "json").stdout) == {}

    beside_a_daemon(tmp_path, check)


def test_what_if_ends_with_0_if_all_fit_and_1_if_not(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        manifest = json.dumps(pod("new", "4"))
        fits = run(control, "what-if", "-f", "-", given=manifest)
        assert fits.exit_code == 0
        assert lines(fits)[0] == "new would fit."
        assert "Nobody else would have to change." in lines(fits)
        some = run(control, "what-if", "-f", "-", "--replicas", "5", given=manifest)
        assert some.exit_code == 1
        assert lines(some)[0].startswith(
            "3 of 5 replicas of new would fit. Replica 4 would be refused: no pool has room for 4"
        )
        assert any("no pool has room for 4 exclusive" in line for line in lines(some))
        changes = lines(some)[lines(some).index("Others would change:") + 2 :]
        assert [line.split()[:3] for line in changes] == [
            ["guest/main", "before", "4-7"],
            ["after", "1-3", "0-1"],
        ]
        document = json.loads(
            run(control, "what-if", "-f", "-", "-o", "json", given=manifest).stdout
        )
        assert document["fits"] is True
        containers = json.loads(run(control, "containers", "-o", "json").stdout)
        assert [*containers] == ["default/guest/main"], "it is as it was"

    beside_a_daemon(tmp_path, check, pod("guest"))


def test_what_if_finds_how_many_fit_and_which_lie_badly(tmp_path: Path) -> None:
    template = {"spec": pod("web", "3")["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "template": template},
    }

    def check(control: Path) -> None:
        most = run(control, "what-if", "-f", "-", "--replicas", "max", given=json.dumps(deployment))
        assert most.exit_code == 0, most.output
        said = " ".join(lines(most))
        assert said.startswith("5 replicas of web would fit. Replica 6 would be refused: no pool")
        assert "Replica 5 would be split: its CPUs are in more than one NUMA node." in lines(most)
        document = json.loads(
            run(
                control,
                *("what-if", "-f", "-", "--replicas", "max", "-o", "json"),
                given=json.dumps(deployment),
            ).stdout
        )
        (web,) = document["pods"]
        assert (web["replicas"], web["fit"], web["more"]) == (None, 5, False)
        assert [each["pod"] for each in web["misfits"]] == ["web-5"]
        assert document["containers"]["default/web-6/main"]["error"]
        endless = run(
            control, "what-if", "-f", "-", "--replicas", "max", given=json.dumps(pod("guest"))
        )
        assert lines(endless)[0] == "At least 1000 replicas of guest would fit."
        assert any("more: see -o json" in line for line in lines(endless))
        none = run(
            control, "what-if", "-f", "-", "--replicas", "max", given=json.dumps(pod("x", "99"))
        )
        assert none.exit_code == 1
        assert lines(none)[0].startswith(
            "No replica of x would fit. Replica 1 would be refused: no pool has room for 99"
        )
        assert run(control, "containers", "-o", "json").stdout.strip() == "{}"

    beside_a_daemon(tmp_path, check)


@pytest.mark.parametrize(
    ("given", "args", "message"),
    [
        (b"{kind: Service}", (), "kind: 'Service' does not create pods"),
        (b"\xff", (), "the text is not UTF-8"),
        (b"{}", ("--replicas", "0"), "is neither a number from 1 to 1000 nor max"),
    ],
)
def test_a_what_if_that_makes_no_sense_is_a_wrong_usage(
    given: bytes, args: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_bytes(given)

    def check(control: Path) -> None:
        result = run(control, "what-if", "-f", str(file), *args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    beside_a_daemon(tmp_path, check)


def test_status_lists_cpus_that_are_offline(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        assert json.loads(run(control, "status", "-o", "json").stdout)["offline_cpus"] == "12-15"
        assert ["CPUs", "offline", "12-15"] in [*map(str.split, lines(run(control, "status")))]

    beside_a_daemon(tmp_path, check, machine=f"{MACHINE} offline=12-15")


def test_nrt_shows_the_huge_pages_of_zones_that_have_any(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        result = CliRunner(env={"COLUMNS": "140"}).invoke(
            main, ["nrt", "--control-socket", str(control)]
        )
        heads, first, second, *_ = (" ".join(line.split()) for line in lines(result))
        assert heads.endswith("memory allocatable available others")
        assert "hugepages" not in first
        assert second.endswith(" hugepages-1Gi: 3 GiB of 4 GiB available")

    using = pod("dpdk", "1")
    for amounts in using["spec"]["containers"][0]["resources"].values():
        amounts["hugepages-1Gi"] = "1Gi"
    machine = "package:1 numa:2(memory=8GiB hugepages-1Gi=0,4) core:4 pu:1"
    beside_a_daemon(tmp_path, check, using, machine=machine)


@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("pools",),
        ("containers",),
        ("explain", "x"),
        ("what-if", "-f", "-"),
        ("audit",),
        ("nrt",),
        ("config", "show"),
    ],
)
def test_a_daemon_that_is_not_there_is_code_3_and_one_line_that_helps(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    result = run(tmp_path / "control.sock", *args)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"nri-policy: the daemon cannot be reached at {tmp_path}/control.sock: No such file or"
        " directory; start it by `systemctl start nri-policy` or `nri-policy run`, or name its"
        " socket by --control-socket\n"
    )


def test_who_may_not_open_the_socket_hears_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: socket.socket, __: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refused)
    result = run(tmp_path / "control.sock", "status")
    assert result.exit_code == 3
    assert "Permission denied; only root (try sudo)" in result.stderr
    assert "the group nri-policy" in result.stderr


def test_a_socket_that_nobody_serves_any_more_is_code_3(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    result = run(tmp_path / "control.sock", "status")
    assert result.exit_code == 3
    assert "Connection refused" in result.stderr


def test_something_else_at_the_socket_is_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens closes at once."""
    monkeypatch.setattr(daemon_option, "connected", partial(connected, patience=0.5))

    async def both() -> Result:
        async def closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_unix_server(closing, str(tmp_path / "control.sock"))
        async with server:
            return await asyncio.to_thread(run, tmp_path / "control.sock", "status")

    result = asyncio.run(both())
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


def renamed(manifest: dict[str, Any], **metadata: str) -> PodManifest:
    """Return a pod with names that an API server would not let through, but a runtime does."""
    read = read_pod(manifest)
    return replace(read, metadata=replace(read.metadata, **metadata))


def test_names_that_are_commands_to_a_terminal_are_only_shown(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b1m"

    def check(socket: Path) -> None:
        asked = {
            args: run(socket, *args)
            for args in (("containers",), ("explain", evil), ("explain", "elsewhere"))
        }
        for result in asked.values():
            assert "owned" in result.output
            assert result.output.replace("\n", "").isprintable()
        assert run(socket, "containers", "-o", "json").output.replace("\n", "").isprintable()

    there = [
        renamed(pod("here"), name=evil),
        renamed(pod("elsewhere"), namespace=evil),
        renamed(pod("refused", "99"), name=f"{evil}2"),
    ]
    beside_a_daemon(tmp_path, check, *there)


def test_nrt_shows_the_object_as_it_would_be_published(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        shown = json.loads(run(control, "nrt", "-o", "json").stdout)
        assert (shown["kind"], shown["metadata"]) == ("NodeResourceTopology", {"name": "node-a"})
        assert yaml.safe_load(run(control, "nrt", "-o", "yaml").stdout) == shown
        table = [line.split() for line in lines(run(control, "nrt"))]
        amounts = ["allocatable", "available"]
        assert table[0] == ["zone", "type", "CPU", *amounts, "memory", *amounts]
        assert table[2] == ["node-1", "Node", "4", "4", "2", "4", "GiB", "4", "GiB", "4", "GiB"]
        assert ["root", "virtual", "node", "16", "15", "13", *(["16", "GiB"] * 3)] in table

    beside_a_daemon(tmp_path, check, pod("own", "2"))


def test_nrt_tells_nothing_before_the_runtime_told_its_containers(tmp_path: Path) -> None:
    async def both() -> Result:
        async with served(tmp_path, MACHINE) as node:
            node.daemon.synchronized.clear()
            return await asyncio.to_thread(run, node.socket, "nrt")

    result = asyncio.run(both())
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has not told its containers yet" in result.stderr


def test_the_socket_can_come_from_the_environment(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        runner = CliRunner(env={"NRI_POLICY_CONTROL_SOCKET": str(control)})
        result = runner.invoke(main, ["containers", "-o", "json"], prog_name="nri-policy")
        assert list(json.loads(result.stdout)) == ["default/own/main"]

    beside_a_daemon(tmp_path, check, pod("own", "2"))


def test_what_changed_containers_last_is_below_the_table_once_for_all_that_it_changed(
    tmp_path: Path,
) -> None:
    def check(control: Path) -> None:
        table = lines(run(control, "containers"))
        assert "last changed because own/main was placed: some/main, more/main" in table
        assert [line.split()[-1] for line in table[:4]] == ["state", *["running"] * 3]

    some, more = (pod(name, "500m", shared=True) for name in ("some", "more"))
    beside_a_daemon(tmp_path, check, some, more, pod("own", "12"))


def test_containers_can_be_sorted_and_limited_to_a_namespace(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        def names(*options: str) -> list[str]:
            return list(json.loads(run(control, "containers", *options, "-o", "json").stdout))

        placed = ["default/b/main", "prod/c/main", "default/a/main"]
        assert names() == placed
        assert names("--sort", "name") == sorted(placed)
        assert names("--sort", "cpu") == ["default/a/main", "default/b/main", "prod/c/main"]
        assert names("--sort", "qos") == ["prod/c/main", "default/a/main", "default/b/main"]
        assert names("-n", "prod") == ["prod/c/main"]
        assert "prod/c/main: placed" in run(control, "explain", "c", "-n", "prod").stdout

    pods = (pod("b", "1"), pod("c", namespace="prod"), pod("a", "2"))
    beside_a_daemon(tmp_path, check, *pods)


def test_status_says_where_settings_come_from_and_what_is_set(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        shown = lines(run(control, "status"))
        assert "settings from       test" in shown
        assert "pins                CPUs" in shown
        assert any("pinMemory is false" in line for line in shown)

    beside_a_daemon(tmp_path, check, pinMemory=False)


def test_what_is_watched_is_shown_again_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        assert seconds == 1.0
        if next(rounds) == 2:
            raise KeyboardInterrupt

    rounds = iter(range(3))
    monkeypatch.setattr("nri_policy.cli.terminal.watching.time.sleep", sleep)

    def check(control: Path) -> None:
        result = run(control, "status", "--watch")
        assert result.exit_code == 0
        assert result.stdout.count("CPUs online") == 3

    beside_a_daemon(tmp_path, check)


def test_the_containers_of_one_pod_are_shown(tmp_path: Path) -> None:
    async def play() -> list[tuple[int, str]]:
        async with served(tmp_path) as node:
            await node.start(pod("web", "2"), pod("web-2", "2"), pod("web", "2", namespace="shop"))
            found = []
            for name in ("web", "shop/web", "web/main", "none", "deployment/web"):
                done = await asyncio.to_thread(run, node.socket, "containers", name, "-o", "json")
                found.append((done.exit_code, done.output))
            return found

    shown = asyncio.run(play())
    names = [[*json.loads(text)] for code, text in shown if code == 0]
    assert names == [["default/web/main"], ["shop/web/main"], ["default/web/main"]]
    known = "known pods: shop/web, web, web-2"
    assert shown[-2:] == [
        (1, f"nri-policy: no pod or container 'none'; {known}\n"),
        (1, "nri-policy: no pod or container 'deployment/web'; did you mean 'web'?\n"),
    ]


def test_a_namespace_without_containers_is_said_with_those_that_there_are(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        result = run(control, "containers", "-n", "shpo")
        assert result.exit_code == 0
        assert lines(result) == [
            "no containers",
            "",
            "note: there are containers of: default, shop",
        ]
        assert json.loads(run(control, "containers", "-n", "shpo", "-o", "json").stdout) == {}

    beside_a_daemon(tmp_path, check, pod("web", "1"), pod("web", "1", namespace="shop"))

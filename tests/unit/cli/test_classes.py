"""Classes as the commands show them: what a container has, what it does without, and why."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nri_policy.classes import Equipment
from nri_policy.cli import main
from nri_policy.hardware.disks import Disk
from nri_policy.plugin.sources import Sources
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support import nodes
from tests.support.daemon import pod, served

YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
SDA = Disk(number="8:0", name="sda", paths=("/dev/sda",), scheduler="bfq")
LINE = "8:0 rbps=1000000 wbps=max riops=max wiops=max"
CLASSES = [
    {"name": "calm", "policy": "batch", "nice": 10, "ioClass": "be", "ioPriority": 7},
    {"name": "fast", "policy": "fifo", "priority": 10},
]
SPEC: dict[str, Any] = {
    "schedulingClasses": CLASSES,
    "namespaceSchedulingClasses": {"ci": "calm"},
    "control": {
        "blockio": {
            "enable": True,
            "classes": {
                "slow": [{"Devices": ["/dev/sda"], "ThrottleReadBps": "1M"}],
                "late": [{"Devices": ["/dev/sdb"], "ThrottleReadBps": "1M"}],
            },
        }
    },
}


def annotated(scheduling: str = "", blockio: str = "") -> dict[str, str]:
    asked = {"scheduling-class": scheduling, "blockioclass": blockio}
    return {f"{key}.resource-policy.nri.io/pod": name for key, name in asked.items() if name}


WEB = pod("web", annotations=annotated("calm", "slow"))
LATE = pod("late", annotations=annotated("fast", "late"))
JOB = pod("job", namespace="ci")


def shown(control: Path, *command: str, given: str = "", width: int = 180) -> str:
    """Return what a command prints."""
    done = CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"}).invoke(
        main, [*command, "--control-socket", str(control)], input=given
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def beside_a_daemon(
    folder: Path, check: Callable[[Path], None], *pods: dict[str, Any], version: str = "2.2.1"
) -> None:
    """Run *check* with the socket of a daemon on a node with one disk that has started *pods*."""
    sources = Sources(equipment=lambda: Equipment(disks=(SDA,)))
    folder.mkdir(exist_ok=True)

    async def both() -> None:
        async with served(folder, sources=sources, version=version, **SPEC) as node:
            node.runtime.machine.disks = frozenset({SDA.number})
            assert not await node.start(*pods)
            await asyncio.to_thread(check, node.socket)

    asyncio.run(both())


def test_explain_tells_of_each_class_what_it_gives_and_who_put_it_there(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        text = shown(control, "explain", "web").partition("\nClasses\n")[2]
        assert [" ".join(line.split()) for line in text.splitlines()] == [
            "class by what wanted found state",
            "scheduling calm annotation scheduler batch, nice 10 - pending",
            "scheduling calm annotation io_priority be 7 - pending",
            f"blockio slow annotation io.max {LINE} - pending",
        ]
        items = json.loads(shown(control, "explain", "late/main", "-o", "json"))["classes"]
        assert [(each["item"], each["wanted"], each["state"]) for each in items] == [
            ("scheduler", "fifo, priority 10", "pending"),
            ("", "scheduling class fast is a real-time one: it can starve its pool", "note"),
            ("", "block I/O class late: no disk is /dev/sdb", "unsupported"),
        ]
        (origin,) = {
            each["origin"]
            for each in json.loads(shown(control, "explain", "ci/job/main", "-o", "json"))[
                "classes"
            ]
        }
        assert origin == "namespace"
        assert "Classes" not in shown(control, "explain", "plain")

    beside_a_daemon(tmp_path, check, WEB, LATE, JOB, pod("plain"))


def test_the_page_about_classes_shows_what_is_printed(tmp_path: Path) -> None:
    """Of the settings on that page, once the kernel was asked what it has."""
    page = (Path(__file__).parents[3] / "docs/classes.md").read_text()
    spec, *others = (yaml.safe_load(text)["spec"] for text in YAML.findall(page))
    for each in others:
        assert not nodes.settings(**each).notices
    sample = page.partition("\nClasses\n")[2].partition("```")[0]
    disk = Disk(number="259:0", name="nvme0n1", paths=("/dev/nvme0n1",))
    sources = Sources(equipment=lambda: Equipment(disks=(disk,)))

    async def both() -> str:
        async with served(
            tmp_path, sources=sources, cgroups=SimulatedCgroups, version="2.2.1", **spec
        ) as node:
            node.runtime.machine.disks = frozenset({disk.number})
            web = pod("web", annotations=annotated("background", "slow-writer"))
            assert not await node.start(web)
            (container,) = node.runtime.containers
            auditor = node.daemon.auditor
            assert container.process is not None
            auditor.first_processes[container.id] = container.process
            await auditor.check()
            return await asyncio.to_thread(shown, node.socket, "explain", "web", width=125)

    printed = asyncio.run(both()).partition("\nClasses\n")[2]
    assert [line.rstrip() for line in printed.splitlines()] == sample.splitlines()


def test_containers_have_a_column_of_classes_where_any_is_in_one(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        head, *rows = shown(control, "containers").splitlines()
        at = head.index("classes")
        cells = {row.split()[0]: row[at:].partition("  ")[0] for row in rows}
        assert cells == {"web/main": "calm, slow", "plain/main": ""}

    beside_a_daemon(tmp_path, check, WEB, pod("plain"))
    beside_a_daemon(tmp_path / "none", lambda control: _has_no(control, "classes"), pod("plain"))


def _has_no(control: Path, column: str) -> None:
    assert column not in shown(control, "containers")


def test_status_counts_containers_that_lack_part_of_their_classes(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        assert json.loads(shown(control, "status", "-o", "json"))["lacking_classes"] == 1
        assert "classes             not all in effect for 1 container: see explain" in shown(
            control, "status"
        )

    beside_a_daemon(tmp_path, check, WEB, LATE, pod("plain"))
    beside_a_daemon(tmp_path / "none", _all_have, WEB)


def _all_have(control: Path) -> None:
    assert "lacking_classes" not in json.loads(shown(control, "status", "-o", "json"))
    assert "classes" not in shown(control, "status")


def test_a_runtime_that_is_too_old_is_named(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        items = json.loads(shown(control, "explain", "web/main", "-o", "json"))["classes"]
        assert [each["state"] for each in items] == ["unsupported", "unsupported", "pending"]
        assert all("runtime too old: containerd 2.1.9" in each["wanted"] for each in items[:2])

    beside_a_daemon(tmp_path, check, WEB, version="2.1.9")


def test_what_if_tells_the_classes_of_newcomers(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        given = json.dumps(LATE)
        answer = json.loads(shown(control, "what-if", "-f", "-", "-o", "json", given=given))
        assert answer["containers"]["default/late/main"]["classes"] == {
            "scheduling": "fast",
            "blockio": "late",
        }
        assert "default/late/main: block I/O class late: no disk is /dev/sdb" in answer["warnings"]
        assert "in classes fast, late" in shown(control, "what-if", "-f", "-", given=given)

    beside_a_daemon(tmp_path, check, WEB)


@pytest.mark.parametrize("key", ["rdtclass", "blockioclass"])
def test_a_container_is_not_in_a_class_that_has_no_effect(tmp_path: Path, key: str) -> None:
    asked = {f"{key}.resource-policy.nri.io/pod": "gold"}

    def tried(control: Path, annotations: dict[str, str]) -> str:
        given = json.dumps(pod("new", annotations=annotations))
        text = shown(control, "what-if", "-f", "-", given=given)
        assert "class gold has no effect: control." in text
        return re.sub(" +\n", "\n", text)

    async def both() -> None:
        async with served(tmp_path, schedulingClasses=CLASSES) as node:
            beside = await asyncio.to_thread(tried, node.socket, {**asked, **annotated("fast")})
            assert "in classes fast\n" in beside
            assert "in classes" not in await asyncio.to_thread(tried, node.socket, asked)

    asyncio.run(both())


def test_what_if_lists_the_limits_that_settings_would_change(tmp_path: Path) -> None:
    limit = {"Devices": ["/dev/sda"], "ThrottleWriteBps": "2M"}
    other = {"blockio": {"enable": True, "classes": {"slow": [limit]}}}
    spec = {"reservedResources": {"cpu": "750m"}, **SPEC}
    document = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}

    def check(control: Path) -> None:
        command = ["what-if", "--settings", "-"]
        given = json.dumps(document | {"spec": spec | {"control": other}})
        answer = json.loads(shown(control, *command, "-o", "json", given=given))
        assert {
            name: [(each[when].get("blockio"), each[when].get("limits")) for when in each]
            for name, each in answer["changes"].items()
        } == {
            "default/web/main": [
                ("slow", {"io.max": LINE}),
                ("slow", {"io.max": "8:0 rbps=max wbps=2000000 riops=max wiops=max"}),
            ]
        }
        text = shown(control, *command, given=given)
        assert "0 of 2 containers would get other CPUs or memory nodes, 1 other limits of" in text
        assert [line.split()[-5:] for line in text.splitlines() if "io.max" in line] == [
            LINE.split(),
            ["8:0", "rbps=max", "wbps=2000000", "riops=max", "wiops=max"],
        ]
        same = json.dumps(document | {"spec": spec})
        assert "I/O" not in shown(control, *command, given=same)

    beside_a_daemon(tmp_path, check, WEB, pod("plain"))


def test_a_journal_with_classes_comes_out_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_a_daemon(tmp_path, lambda _: None, WEB, LATE, JOB, pod("plain"))
    done = CliRunner().invoke(main, ["replay", str(tmp_path)])
    assert "Every decision came out as it was recorded." in done.stdout
    monkeypatch.setattr("nri_policy.engine.lifecycle.lifecycle.classes_of", lambda *_: None)
    done = CliRunner().invoke(main, ["replay", str(tmp_path), "-o", "json"])
    assert done.exit_code == 1
    different = {each["what"] for each in json.loads(done.stdout)["differences"]}
    assert {"classes", "placement: limits: io.max", "warnings"} <= different

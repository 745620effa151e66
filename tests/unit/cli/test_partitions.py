"""Kernel partitions as the commands show them: which there are, which are missing, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.delivery.partition_files import PARTITION
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import pod, served

DOCUMENT = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
RESERVED = {"reservedResources": {"cpu": "750m"}}
REASON = "partition config conflicts with housekeeping setup"


class Refusing(SimulatedCgroups):
    """The containers' cgroups on a kernel that calls isolated partitions invalid."""

    def read(self, path: str, name: str) -> str | None:
        text = super().read(path, name)
        return f"{text} invalid ({REASON})" if (name, text) == (PARTITION, "isolated") else text


def shown(control: Path, *command: str, given: str = "") -> str:
    """Return what a command prints."""
    done = CliRunner(env={"COLUMNS": "180", "NO_COLOR": "1"}).invoke(
        main, [*command, "--control-socket", str(control)], input=given
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def beside_a_daemon(folder: Path, check: Callable[[Path], None], **spec: Any) -> None:
    """Check what commands print of an owner, one that is to be isolated, and a sharer."""

    async def run() -> None:
        isolated = {"exclusive-partition.resource-policy.nri.io/pod": "isolated"}
        async with served(folder, cgroups=Refusing, **spec) as it:
            await it.start(pod("own", "2"), pod("alone", "1", annotations=isolated), pod("shared"))
            await asyncio.to_thread(check, it.socket)

    asyncio.run(run())


def test_containers_says_which_partition_each_is_and_which_the_kernel_does_not_make(
    tmp_path: Path,
) -> None:
    def check(control: Path) -> None:
        head, *rows = shown(control, "containers").splitlines()
        at = head.index("partition")
        cells = [row[at:].partition("  ")[0] for row in rows if "/main" in row]
        assert cells == ["root", "missing (isolated)", "-"]
        found = json.loads(shown(control, "containers", "-o", "json"))
        assert found["default/alone/main"]["partition_error"] == REASON
        assert found["default/own/main"]["partition"] == "root"
        assert "partition_error" not in found["default/own/main"]

    beside_a_daemon(tmp_path, check, exclusivePartitions="root")


def test_what_if_says_which_containers_become_partitions(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        command = ["what-if", "--settings", "-"]
        spec = {**RESERVED, "exclusivePartitions": "root"}
        given = json.dumps({**DOCUMENT, "spec": spec})
        text = shown(control, *command, given=given)
        assert "0 of 3 containers would get other CPUs or memory nodes" in text
        assert ", 1 another kernel partition or none:" in text
        changes = json.loads(shown(control, *command, "-o", "json", given=given))["changes"]
        assert {each: change["after"]["partition"] for each, change in changes.items()} == {
            "default/own/main": "root"
        }
        same = json.dumps({**DOCUMENT, "spec": RESERVED})
        assert "partition" not in shown(control, *command, given=same)

    beside_a_daemon(tmp_path, check, **RESERVED)


def test_what_if_says_that_a_new_pod_would_be_one(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        given = json.dumps(pod("new", "1"))
        assert "kernel partition, root" in shown(control, "what-if", "-f", "-", given=given)

    beside_a_daemon(tmp_path, check, exclusivePartitions="root")

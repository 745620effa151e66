"""Cgroups above pods that somebody else has narrowed are named where one looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.proto import control_pb2 as pb
from nri_policy.report import ExplanationReport, decode
from tests.support.daemon import pod, served
from tests.unit.audit.host import Root


@pytest.mark.parametrize("version", [1, 2])
async def test_a_cgroup_above_pods_that_lacks_cpus_is_in_log_status_and_explain(
    version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Root(tmp_path, version)
    async with served(tmp_path) as node:
        await node.start(pod("own", "2"), pod("guest", "2"))
        own, guest = node.runtime.containers
        paths = [folder_of(each.message.linux.cgroups_path) or "" for each in (own, guest)]
        for path, each in zip(paths, (own, guest), strict=True):
            root.cgroup(path, str(each.cpus), str(each.mems))
        mount = root.path / ("sys/fs/cgroup/cpuset" if version == 1 else "sys/fs/cgroup")
        top = mount / paths[0].partition("/")[0] / "cpuset.cpus"
        parents, cpus = node.daemon.parents, node.daemon.node.view.layout.machine.online

        control, nobody = node.daemon.control, cast("Any", None)

        async def notes(name: str) -> tuple[str, ...]:
            answer = await control.explain(pb.ExplainRequest(name=name), nobody)
            return decode(answer.json, ExplanationReport).notes

        top.write_text(f"{cpus}\n")
        await parents.look()
        assert "cgroup-narrowed" not in caplog.text
        assert not [*parents.problems()]
        top.write_text(f"{cpus - own.cpus}\n")
        await parents.look()
        await parents.look()
        assert caplog.text.count("cgroup-narrowed") == 1
        (problem,) = (each for each in node.daemon.status.doubts() if "cpuset.cpus" in each)
        assert problem.startswith(f"{top.parent.name} has only CPUs {cpus - own.cpus} ")
        assert f"placed on {own.cpus} do not start" in problem
        (note,) = await notes("default/own/main")
        assert note.startswith(f"does not run on {own.cpus}: {top.parent.name} has only CPUs")
        assert not await notes("default/guest/main")
        top.write_text(f"{cpus}\n")
        of_guest = mount / paths[1].rpartition("/")[0] / top.name
        of_guest.write_text(f"{guest.cpus}\n")  # it lacks the CPUs of `own`, which is elsewhere
        await parents.look()
        assert len([*parents.problems()]) == 1
        assert not await notes("default/own/main")
        of_guest.write_text(f"{cpus}\n")
        await parents.look()
        assert not [*parents.problems()]

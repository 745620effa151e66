"""What docs/pods.md says that pods get is what they get, and its entrypoint runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import yaml

from nri_policy.report import answer_report
from tests.support.daemon import served

PAGE = (Path(__file__).parents[2] / "docs" / "pods.md").read_text()
MACHINE = "package:2 numa:2 core:8 pu:2 isolated=8-15"
EXAMPLE = re.compile(r"^### \d+\. [^\n]*\n(.*?)^Gets ([^\n]*)\.$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_the_pods_of_the_cookbook_get_what_it_says(tmp_path: Path) -> None:
    claimed = {}
    pods = []
    for text, gets in EXAMPLE.findall(PAGE):
        ((_, manifest),) = BLOCK.findall(text)
        pod = {"apiVersion": "v1", "kind": "Pod", **yaml.safe_load(manifest)}
        pods.append(pod)
        for container, amount in re.findall(r"`(\w+): ([^`]*)`", gets):
            claimed[f"default/{pod['metadata']['name']}/{container}"] = amount

    async def got() -> dict[str, str]:
        async with served(tmp_path, MACHINE, preferIsolatedCPUs=True) as node:
            assert not await node.start(*pods)
            view = node.daemon.node.view
            placed = view.by_name()
            beside = (placed[f"default/{name}/main"].grant for name in ("database", "cache"))
            assert len({grant.pool for grant in beside}) == 1
            return {
                name: re.split(":|, not isolated", answer_report(view, each).got)[0]
                for name, each in placed.items()
            }

    assert len(pods) == 10
    assert asyncio.run(got()) == claimed


def test_the_entrypoint_splits_the_cpus(tmp_path: Path) -> None:
    ((_, script),) = [block for block in BLOCK.findall(PAGE) if block[0] == "sh"]
    script = script.replace("/.nri-resource-policy", str(tmp_path))
    taskset = tmp_path / "taskset"
    taskset.write_text('#!/bin/sh\necho "$3 on $2"\n')
    taskset.chmod(0o755)

    def said(resources: str) -> set[str]:
        (tmp_path / "resources.sh").write_text(resources)
        path = f"{tmp_path}:{os.environ['PATH']}"
        shell = ["sh", "-c", f"{script}\n", "sh"]
        done = subprocess.run(shell, env={"PATH": path}, capture_output=True, text=True, check=True)
        return {*done.stdout.splitlines()}

    own = 'SHARED_CPUS="4-7"\nEXCLUSIVE_CPUS="1"\n'
    assert said(own) == {"background-work on 4-7", "fast-work on 1"}
    assert said('ISOLATED_CPUS="9"\n') == {"background-work on 9", "fast-work on 9"}
    assert said('SHARED_CPUS="4"\n') == {"background-work on 4", "fast-work on 4"}

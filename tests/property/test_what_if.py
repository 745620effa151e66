"""What `what-if` answers is what then really happens, whoever is on the node."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.node import WhatIf
from nri_policy.report import newcomer_report, plain, what_if_report
from tests.support import nodes
from tests.support.daemon import Served, served
from tests.support.pictures import held_by

MACHINES = (
    nodes.SMALL,
    "package:2(pmem=4GiB) numa:2(memory=1GiB) core:2 pu:2",
    "package:1 numa:2(memory=512MiB) core:3 pu:1",
)

amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(("100m", "1", "1500m", "2", "3", "5")),
        "memory": st.sampled_from(("1Mi", "100Mi", "400Mi", "3Gi")),
    },
)
containers = st.builds(
    lambda requests, limits, is_limited: {
        "resources": {"limits": limits} if is_limited else {"requests": requests}
    },
    amounts,
    amounts,
    st.booleans(),
)
wishes = st.dictionaries(
    st.sampled_from(
        ("prefer-shared-cpus", "prefer-reserved-cpus", "hide-hyperthreads", "memory.preserve")
    ).map(lambda key: f"{key}.resource-policy.nri.io/pod"),
    st.sampled_from(("true", "false", "false", "odd")),
    max_size=1,
)


@st.composite
def pods(draw: st.DrawFn, prefix: str) -> list[dict[str, Any]]:
    """Return manifests of a few pods."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{prefix}{number}", "annotations": draw(wishes)},
            "spec": {
                part: [
                    {"name": f"{part[0]}{i}", **each}
                    for i, each in enumerate(draw(st.lists(containers, min_size=least, max_size=2)))
                ]
                for part, least in (("initContainers", 0), ("containers", 1))
            },
        }
        for number in range(draw(st.integers(1, 4)))
    ]


@given(machine=st.sampled_from(MACHINES), there=pods("a"), new=pods("b"))
@settings(max_examples=40, deadline=None)
def test_what_if_says_what_then_happens(
    machine: str, there: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    asyncio.run(_compare(machine, there, new))


async def _compare(machine: str, there: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        async with served(Path(folder), machine, listening=False) as node:
            await node.start(*there)
            engine = node.daemon.node._engine
            before = _told(node)
            document = _tried(node, new)
            assert _told(node) == before
            errors = "; ".join(await node.start(*new))
            after, held = _told(node), plain(held_by(engine))
            for name, fields in document["containers"].items():
                if fields["state"] == "created":
                    got = held.pop(name)
                    assert all(got[key] == fields[key] for key in view_fields())
                else:
                    assert name not in held
                assert (fields["error"] or "") in errors
            for name, change in document["changes"].items():
                assert (change["before"]["cpus"], change["before"]["mems"]) == before[name]
                assert (change["after"]["cpus"], change["after"]["mems"]) == after[name]
            unchanged = before.keys() - document["changes"].keys()
            assert {name: after[name] for name in unchanged} == {
                name: before[name] for name in unchanged
            }
            assert held.keys() == before.keys(), "no pod that was not foretold"
            assert document["fits"] == (not errors)


def _tried(node: Served, new: list[dict[str, Any]]) -> Any:
    text = "\n---\n".join(map(json.dumps, new))
    trial = WhatIf(node.daemon.node.fork())
    for wanted in node.daemon.control._what_if.pods(text, 0).pods:
        for _ in trial.run(wanted):
            pass
    result = trial.result()
    newcomers = {name: newcomer_report(each) for name, each in result.newcomers.items()}
    return plain(what_if_report(result, newcomers))


def _told(node: Served) -> dict[str, tuple[str, str]]:
    """Return CPUs and memory nodes that the runtime runs each container with."""
    return {
        each.key: (each.message.linux.resources.cpu.cpus, each.message.linux.resources.cpu.mems)
        for each in node.runtime.containers
    }


def view_fields() -> tuple[str, ...]:
    held = ("pool", "cpus", "exclusive", "shared_milli", "isolated", "mems", "shares")
    return ("qos", "sort", *held)

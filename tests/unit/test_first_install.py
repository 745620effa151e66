"""A first installation: what would move is known before anything does (docs/install.md)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.settings import API_VERSION, KIND, load
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support.daemon import Served, pod, served
from tests.unit.cli.test_daemon_commands import run

OFF: dict[str, Any] = {
    "pinCPU": False,
    "pinMemory": False,
    "preferIsolatedCPUs": False,
    "reservedResources": {"cpu": "750m"},
}
PAYING = (
    pod("database", "2"),
    pod("web", "500m", shared=True),
    pod("batch"),
    pod("dns", "100m", shared=True, namespace="kube-system"),
)
Check = Callable[[Served], Coroutine[Any, Any, object]]


def settings(folder: Path, **spec: Any) -> str:
    """Write settings of a first start with *spec* into a file, and return its name."""
    path = folder / "new.yaml"
    path.write_text(document(**spec))
    return str(path)


def document(**spec: Any) -> str:
    """Return settings of a first start with *spec*."""
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "default"}}
    return json.dumps({**head, "spec": {**OFF, **spec}})


def unpinned(folder: Path, check: Check, *pods: dict[str, Any]) -> None:
    """Run *check* with a daemon that found *pods* running, and pins nothing."""

    async def both() -> None:
        async with served(folder, before=pods, cgroups=SimulatedCgroups, **OFF) as node:
            await check(node)

    asyncio.run(both())


def cpusets(runtime: EmbeddedRuntime) -> dict[str, tuple[str, str]]:
    return {each.key: (str(each.cpus), str(each.mems)) for each in runtime.containers}


async def what_if(node: Served, *args: str) -> Any:
    result = await asyncio.to_thread(run, node.socket, "what-if", *args, "-o", "json")
    assert result.exit_code in {0, 1}, result.output
    return json.loads(result.stdout)


def test_the_line_of_the_page_turns_both_fields_on_however_they_are_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    (script,) = re.findall(r'sed -E "(.*?)"', page)
    for written in (document(), "spec:\n  pinCPU: false\n  pinMemory: false\n"):
        text = written.replace('"', "")
        done = subprocess.run(
            ["sed", "-E", script], input=text, capture_output=True, text=True, check=True
        )
        assert done.stdout.count("pinCPU: true") == done.stdout.count("pinMemory: true") == 1


def test_nobody_moves_before_pinning_is_on_and_then_just_who_was_named(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        untouched = dict.fromkeys(cpusets(node.runtime), ("", ""))
        assert cpusets(node.runtime) == untouched
        new = settings(tmp_path, pinCPU=True, pinMemory=True)
        answer = await what_if(node, "--settings", new)
        assert answer["settings"]["accepted"]
        assert answer["changes"].keys() == untouched.keys()
        for change in answer["changes"].values():
            assert (change["before"]["cpus"], change["before"]["mems"]) == ("0-15", "0-3")
        assert cpusets(node.runtime) == untouched, "nothing was changed by asking"

        node.daemon.reloads.read = lambda: load(Path(new).read_bytes(), new)
        assert (await node.daemon.reloads.reload()).accepted
        await node.daemon.flush_updates()
        await node.runtime.settled()
        foretold = {
            name: (change["after"]["cpus"], change["after"]["mems"])
            for name, change in answer["changes"].items()
        }
        # memory nodes that are allowed already need no update
        now = {name: (cpus, mems or "0-3") for name, (cpus, mems) in cpusets(node.runtime).items()}
        assert now == foretold
        assert foretold["default/database/main"] == ("4-5", "1")
        assert (await what_if(node, "--settings", new))["changes"] == {}

    unpinned(tmp_path, check, *PAYING)


def test_who_is_pinned_stays_there_when_pinning_is_turned_off(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        seen = []
        for pinned in (True, False):
            await node.daemon.events.reconfigure(
                settings=load(document(pinCPU=pinned, pinMemory=pinned), "test")
            )
            await node.daemon.flush_updates()
            await node.runtime.settled()
            seen.append(cpusets(node.runtime))
        before, after = seen
        assert after == before
        assert before["default/database/main"] == ("4-5", "1")
        await node.start(pod("new", "1"))
        assert cpusets(node.runtime)["default/new/main"] == ("", "")

    unpinned(tmp_path, check, *PAYING)


def test_nothing_changes_for_who_stays_when_pinning_is_turned_off(tmp_path: Path) -> None:
    """Also for containers on reserved CPUs, whose pool is not the smallest one around these."""

    async def check(node: Served) -> None:
        pinned = load(document(pinCPU=True, pinMemory=True), "test")
        await node.daemon.events.reconfigure(settings=pinned)
        await node.daemon.flush_updates()
        await node.runtime.settled()
        for spec in ({"pinMemory": True}, {}):
            assert (await what_if(node, "--settings", settings(tmp_path, **spec)))["changes"] == {}

    unpinned(tmp_path, check, *PAYING)


def test_only_what_would_be_pinned_is_a_move(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        answer = await what_if(node, "--settings", settings(tmp_path, pinCPU=True))
        change = answer["changes"]["default/database/main"]
        assert (change["before"]["cpus"], change["after"]["cpus"]) == ("0-15", "4-5")
        assert change["before"]["mems"] == change["after"]["mems"] == "0-3"
        assert (await what_if(node, "--settings", settings(tmp_path)))["changes"] == {}

    unpinned(tmp_path, check, *PAYING)


def test_the_tables_say_that_it_is_pins_nothing(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        for command in ("status", "containers", "audit", "explain database"):
            shown = (await asyncio.to_thread(run, node.socket, *command.split())).stdout.split()
            assert " ".join(shown).count("pinCPU is false and pinMemory is false") == 1, command
        said = await asyncio.to_thread(run, node.socket, "explain", "database")
        assert said.stdout.startswith("database/main: placed on NUMA node #1 (decided, not set)\n")
        new = settings(tmp_path, pinCPU=True, pinMemory=True)
        result = await asyncio.to_thread(run, node.socket, "what-if", "--settings", new)
        assert result.stdout.startswith("These settings would be accepted.\n")
        shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert "4 of 4 containers would get other CPUs or memory nodes:" in shown
        at = shown.index("database/main before 0-15 0-3 root")
        assert shown[at + 1] == "after 4-5 1 NUMA node #1"
        few = settings(tmp_path, pinCPU=True, reservedResources={"cpu": "5"})
        result = await asyncio.to_thread(run, node.socket, "what-if", "--settings", few)
        assert "\nBefore, as decided\n" in result.stdout, "the kernel has all on all CPUs"

    unpinned(tmp_path, check, *PAYING)


def test_a_container_that_has_ended_was_not_set_either(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        await node.start(pod("job", "3"))
        await node.runtime.stop_pod(node.runtime.pod("job"))
        await node.runtime.settled()
        said = await asyncio.to_thread(run, node.socket, "explain", "job")
        assert said.stdout.splitlines()[0].endswith(" (decided, not set)")
        assert "From the journal: " in said.stdout

    unpinned(tmp_path, check, *PAYING)


def test_settings_that_would_be_refused_say_why(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        new = settings(tmp_path, pinCPU=True, availableResources={"cpu": "cpuset:0-1"})
        result = await asyncio.to_thread(run, node.socket, "what-if", "--settings", new)
        assert result.exit_code == 1
        said = " ".join(result.stdout.split())
        assert said.startswith("These settings would be refused: default/database/main: no pool")
        assert "Nobody would move." in said
        manifest = tmp_path / "pod.json"
        manifest.write_text(json.dumps(pod("new", "1")))
        answer = await what_if(node, "--settings", new, "-f", str(manifest))
        assert (answer["fits"], answer["pods"]) == (False, [])

    unpinned(tmp_path, check, *PAYING)


def test_pods_come_under_the_settings_asked_about(tmp_path: Path) -> None:
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod("new", "14")))
    few = settings(tmp_path, reservedResources={"cpu": "3"})

    async def check(node: Served) -> None:
        assert (await what_if(node, "-f", str(manifest)))["fits"]
        both = await what_if(node, "-f", str(manifest), "--settings", few)
        assert both["settings"]["accepted"]
        assert not both["fits"]
        assert "14 exclusive CPUs" in both["containers"]["default/new/main"]["error"]

    unpinned(tmp_path, check)


def test_a_pod_that_does_not_fit_would_start_until_pinning_is_on(tmp_path: Path) -> None:
    manifest, new = tmp_path / "pod.json", settings(tmp_path, pinCPU=True)
    huge = pod("huge", "99")
    huge["spec"]["initContainers"] = [{**huge["spec"]["containers"][0], "name": "first"}]
    manifest.write_text(json.dumps(huge))

    async def check(node: Served) -> None:
        both = await what_if(node, "-f", str(manifest))
        assert both["containers"].keys() == {"default/huge/first", "default/huge/main"}
        assert (both["fits"], both["pods"][0]["starts_unplaced"]) == (False, True)
        why = both["pods"][0]["refusal"]
        assert why.startswith("first: no pool has room for 99 exclusive CPUs: ")
        for args, sentence, notes, code in (
            (
                (),
                f"huge would not fit: {why}. It would start, but with pinning on it would be",
                1,
                0,
            ),
            (
                ("--replicas", "2"),
                f"0 of 2 replicas of huge would fit. Replica 1 would not fit: {why}. It would",
                1,
                0,
            ),
            (("--settings", new), f"huge would be refused: {why}.", 0, 1),
        ):
            call = ("what-if", "-f", str(manifest), *args)
            result = await asyncio.to_thread(run, node.socket, *call)
            said = " ".join(result.stdout.split())
            assert result.exit_code == code
            assert sentence in said
            assert said.count("note: pinCPU is false and pinMemory is false") == notes

    unpinned(tmp_path, check)


def test_who_fits_nowhere_runs_on_and_explain_says_what_is_missing(tmp_path: Path) -> None:
    odd = {"hide-hyperthreads.resource-policy.nri.io": "maybe"}

    async def check(node: Served) -> None:
        assert await node.start(pod("later", "99"), pod("odd", annotations=odd)) == []
        states = {each.key: str(each.state) for each in node.runtime.containers}
        assert {*states.values()} == {"running"}
        for name, reason in (
            ("huge", "no pool has room for 99 exclusive CPUs"),
            ("later", "no pool has room for 99 exclusive CPUs"),
            ("wrong", "'maybe' is not true or false"),
            ("odd", "'maybe' is not true or false"),
        ):
            said = await asyncio.to_thread(run, node.socket, "explain", name)
            assert reason in " ".join(said.stdout.split()), name
        new = settings(tmp_path, pinCPU=True, pinMemory=True)
        assert (await what_if(node, "--settings", new))["changes"].keys() == states.keys()

    unpinned(tmp_path, check, pod("huge", "99"), pod("wrong", annotations=odd), pod("small"))


def test_odd_annotations_of_pods_that_run_already_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"hide-hyperthread.resource-policy.nri.io": "true"}

    async def check(node: Served) -> None:
        await node.runtime.restart()
        await node.runtime.synchronized(after=1)
        warned = [
            each for each in caplog.text.splitlines() if "event=annotation pod=default/odd" in each
        ]
        assert len(warned) == 1
        assert "did you mean 'hide-hyperthreads'?" in warned[0]

    unpinned(tmp_path, check, pod("odd", annotations=odd))


def test_a_resize_that_does_not_fit_is_not_refused_either(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        change = ResourceChange(requests=Amounts(cpu=99_000), limits=Amounts(cpu=99_000))
        await node.runtime.resize(node.runtime.pod("database"), "main", change)
        said = await asyncio.to_thread(run, node.socket, "explain", "database")
        assert "A later resize was refused" in said.stdout

    unpinned(tmp_path, check, *PAYING)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "give pods by -f, settings by --settings, or both"),
        (("--settings", "-", "--replicas", "2"), 2, "--replicas is about pods: give them by -f"),
        (("--settings", "absent.yaml"), 2, "absent.yaml"),
    ],
)
def test_a_question_without_sense_is_a_wrong_usage(
    args: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    result = run(tmp_path / "nobody", "what-if", *args)
    assert result.exit_code == code
    assert message in result.stderr


def test_wrong_settings_are_said_before_anybody_is_asked(tmp_path: Path) -> None:
    result = run(tmp_path / "nobody", "what-if", "--settings", settings(tmp_path, pinCPUs=True))
    assert result.exit_code == 78
    assert "spec.pinCPUs: unknown field; did you mean 'pinCPU'?" in result.stderr


def test_settings_come_from_stdin_too(tmp_path: Path) -> None:
    async def check(node: Served) -> None:
        text = document(pinCPU=True)
        result = await asyncio.to_thread(
            lambda: run(node.socket, "what-if", "--settings", "-", given=text)
        )
        assert result.exit_code == 0
        assert "4 of 4 containers" in result.stdout

    unpinned(tmp_path, check, *PAYING)

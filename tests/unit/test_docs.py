"""What the README and the pages below docs/ say can be done, can be done.

Commands are in blocks without a language, or of `sh`: the lines of those that begin with a program,
or those that begin with `$ ` where the others are output. They run in a folder of their own, beside
a daemon with an embedded runtime, except what `NEEDS` says why not.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner

from benchmarks import cluster
from benchmarks.__main__ import NAMES
from benchmarks.__main__ import main as benchmark
from nri_policy.cli import main
from nri_policy.cli.examples import EXAMPLES
from nri_policy.hardware import synthetic
from nri_policy.settings import CPUClass, Instrumentation, Log, Settings
from nri_policy.settings.schema import ControlSettings
from tests.support import nodes
from tests.support.daemon import pod, served
from tests.support.forked_program import ForkedProgram, forked_program
from tests.support.log_calls import log_calls

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]

# What is not run here, by how the line begins, and why.
NEEDS = {
    "/opt/nri-policy/bin/nri-policy": "a system of its own",
    "/opt/nri-policy/bin/pip": "a system of its own",
    "apt": "a system of its own",
    "apt-get": "a system of its own",
    "cp": "a system of its own",
    "dpkg": "a system of its own",
    "editor": "somebody at it",
    "grpcurl": "a program that is not ours",
    "helm": "a cluster",
    "install": "a system of its own",
    "journalctl": "systemd",
    "kubectl": "a cluster",
    "ln": "a system of its own",
    "make": "a whole build; its target is looked up in the Makefile",
    "mkdir": "a system of its own",
    "nri-policy cluster fit": "a cluster",
    "nri-policy cluster run": "a cluster",
    "nri-policy cluster top": "a cluster",
    "nri-policy restore": "a tuner's journal, and to be root",
    "nri-policy run": "a runtime, and to be root",
    "nri-policy top": "a terminal",
    "nri-policy tunables": "a tuner",
    "nri-policy tuner": "to be root",
    "podman": "a registry of images",
    "python3 -m venv": "a system of its own",
    "rm": "a system of its own",
    "sudo": "a system of its own",
    "systemctl": "systemd",
    "touch": "a system of its own",
}
RUN = {".venv/bin/nri-policy", "nri-policy", "eval", "sed"}
ANSWER_NO = {"doctor", "cluster explain"}  # 1 is an answer, not a failure

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_ASSIGNED = re.compile(r"\w+=")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return _BLOCK.sub("", page.read_text())


def blocks(page: Path) -> Iterator[list[str]]:
    """Yield the commands of each block that has some."""
    for indent, language, text in _BLOCK.findall(page.read_text()):
        if language not in {"", "sh"}:
            continue
        text = text.replace("\\\n", " ")  # noqa: PLW2901 - the same, with long lines in one
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if prompted:
            yield prompted
        elif lines and is_program(lines[0].partition(" ")[0]):
            yield [line for line in lines if line and not line.startswith("#")]


def is_program(word: str) -> bool:
    known = {each.partition(" ")[0] for each in NEEDS}
    return word in RUN or word in known or (word.isascii() and bool(shutil.which(word)))


def need(command: str) -> str | None:
    """Return why a command is not run; None where it is."""
    plain = command.removeprefix(".venv/bin/")
    return next((why for start, why in NEEDS.items() if f"{plain} ".startswith(f"{start} ")), None)


def script(commands: list[str], folder: Path) -> str:
    """Return what runs *commands*, each of which has to end well."""
    lines = ["trap 'kill -INT $(jobs -p) 2>/dev/null; wait' EXIT"]
    for command in commands:
        if need(command):
            continue
        command = _placed(command, folder)  # noqa: PLW2901 - the same, elsewhere
        words = shlex.split(command, comments=True)
        words = [*dropwhile(_ASSIGNED.match, words)]
        assert words[0] in RUN, f"{command}: say in NEEDS what it needs"
        if "--stay" in words:
            socket = Path(words[words.index("--stay") + 1]) / "control.sock"
            lines.append(f"{command.partition('  #')[0]} >&2 &")
            lines.append(f"until [ -S {socket} ]; do kill -0 $! || exit 9; sleep 0.1; done")
            continue
        if words[1:2] == ["capture"]:
            lines.append(f"rm -f {words[2]}")
        says_no = {words[1], " ".join(words[1:3])} & ANSWER_NO
        allowed = "[ $? = 1 ]" if says_no else "false"
        report = f"echo {shlex.quote(command)} failed >&2"
        # in braces: a comment at the end of the line must not swallow the rest
        lines.append(f"{{ {command}\n}} || {allowed} || {{ {report}; exit 9; }}")
    return "\n".join(lines)


def _placed(command: str, folder: Path) -> str:
    """Return a command with what it keeps elsewhere kept in *folder*."""
    for place in ("/var/lib/nri-policy", "/etc/nri-policy", "/tmp/node", "~/.config"):
        command = command.replace(place, str(folder / Path(place).name))
    return command


SETTINGS = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec: {reservedResources: {cpu: 750m}, preferSharedCPUs: true}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec: {containers: [{name: app, resources: {limits: {cpu: AMOUNT, memory: 16Mi}}}]}
"""
CLUSTER = """\
nodes:
- metadata: {name: a, labels: {kubernetes.io/hostname: a, topology.kubernetes.io/zone: z}}
  status: {allocatable: {cpu: 8, memory: 8Gi, pods: 9}, conditions: [{type: Ready, status: "True"}]}
groups:
- metadata: {name: training, namespace: prod}
  spec: {podSets: [{name: main, count: 1}]}
"""
SCENARIO = """\
- settings: {reservedResources: {cpu: 750m}}
- apply: [{file: pods/best-effort.yaml}]
"""


@pytest.fixture(scope="module")
def program() -> Iterator[ForkedProgram]:
    with forked_program() as program:
        yield program


@pytest.fixture
def furnished(program: ForkedProgram, tmp_path: Path) -> Path:
    """A folder with the program and what else the pages take for granted."""
    furnish(tmp_path)
    asking = {"control_socket": f"{tmp_path}/control.sock"}
    names = ("status", "pools", "containers", "explain", "what-if", "audit", "nrt")
    defaults = {
        **dict.fromkeys(names, asking),
        "history": {"journal": str(tmp_path)},
        "config": {"show": asking, "reload": asking},
        "doctor": {"host_root": str(tmp_path), "state_dir": str(tmp_path), **asking},
    }
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    program.write(programs / "nri-policy", defaults)
    return tmp_path


def furnish(folder: Path) -> None:
    for name in ("configs", "docs", "proto"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / "fish" / "completions").mkdir(parents=True)
    (folder / ".config").symlink_to(folder)
    for name in ("new.yaml", "settings.yaml", "config.yaml"):
        (folder / name).write_text(SETTINGS)
    for name, amount in (("pod", "2"), ("web", "500m")):
        (folder / f"{name}.yaml").write_text(POD.replace("NAME", name).replace("AMOUNT", amount))
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "cluster.json").write_text(CLUSTER)
    (folder / "pods").symlink_to(PROJECT / "configs" / "pods")
    for name, spec in (("node-17", nodes.SMALL), ("bigger-node", "package:2 numa:2 core:8 pu:2")):
        root = folder / name
        synthetic.write(spec, root)
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as file:
            file.add(root, arcname=".")


def copy_of_store(folder: Path) -> None:
    """Copy the daemon's journal to state.db, as one would a database in use."""
    with sqlite3.connect(folder / "store" / "state.db") as store:
        with sqlite3.connect(folder / "state.db") as copy:
            store.backup(copy)
        copy.close()
    store.close()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks(page))], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_can_be_run_as_they_stand(page: Path, furnished: Path) -> None:

    async def run() -> None:
        async with served(furnished, load=nodes.settings) as node:
            await node.start(
                pod("database", "3"),
                pod("database", "1", namespace="prod"),
                pod("web", "500m", shared=True),
            )
            copy_of_store(furnished)
            (furnished / "nri-policy").symlink_to(furnished)  # /var/lib/…, /etc/…
            for commands in blocks(page):
                await _succeeds(script(commands, furnished), furnished)

    asyncio.run(run())


def test_the_examples_in_the_help_of_commands_can_be_run(furnished: Path) -> None:
    lines = [each.line for examples in EXAMPLES.values() for each in examples]
    assert len({line.split()[1] for line in lines}) == len(main.list_commands(click.Context(main)))

    async def run() -> None:
        async with served(furnished, load=nodes.settings) as node:
            await node.start(pod("database", "3"), pod("database", "1", namespace="prod"))
            await node.start(pod("web", "500m", shared=True))
            copy_of_store(furnished)
            (furnished / "nri-policy").symlink_to(furnished)
            await _succeeds(script(lines, furnished), furnished)

    asyncio.run(run())


def test_what_a_page_shows_of_a_cluster_is_what_is_printed(furnished: Path) -> None:
    text = "".join(page.read_text() for page in PAGES if page.name.startswith("cluster"))
    shown = re.findall(r"```\n\$ (nri-policy cluster .*?[^\\])\n(.*?)```", text, re.DOTALL)
    assert len(shown) >= 6
    for command, output in shown:
        done = subprocess.run(
            command.replace("nri-policy", ".venv/bin/nri-policy", 1),
            shell=True,
            cwd=furnished,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "110"},
        )
        assert done.stdout == output, command


async def _succeeds(text: str, folder: Path) -> None:
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        text,
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder), "NO_COLOR": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, f"{text}\n{errors.decode()}"


def test_each_make_command_of_a_page_is_a_target() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    targets = {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(), re.MULTILINE)
        assert {*named} <= targets, page.name


def test_what_the_page_shows_of_a_malformed_machine_is_what_is_printed() -> None:
    page = (PROJECT / "docs/synthetic.md").read_text()
    (given,) = re.findall(r"malformed specification, here `(.*?)`", page)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    done = CliRunner().invoke(main, ["topology", "--synthetic", given], prog_name="nri-policy")
    assert done.stderr == shown


def test_every_benchmark_is_named() -> None:
    for page in ("docs/dev/figures.md", "benchmarks/figures.md"):
        text = (PROJECT / page).read_text()
        listed = text.partition("The parts:")[2].partition(".\n")[0]
        assert re.findall(r"`(\w+)`", listed) == NAMES, page


def test_every_curve_of_the_clusters_picture_is_a_row_of_its_table() -> None:
    [written] = cluster.PLACE.findall(cluster.PAGE.read_text())
    rows = re.findall(r"^\| ([^|]+) \|", written, re.MULTILINE)
    texts = {*ET.parse(cluster.PICTURE).getroot().itertext()}
    for title, chart in cluster.CHARTS.items():
        assert f"{title}, µs" in texts
        assert {*chart} <= {*rows}
        assert {*chart.values()} <= texts


def test_a_benchmark_that_is_none_is_an_error_with_those_that_are() -> None:
    with pytest.raises(SystemExit, match=r"no benchmark foo; there are affinity, .*decisions"):
        benchmark(["foo"])


def test_every_link_leads_somewhere() -> None:
    for page in {*PAGES, *PROJECT.glob("*.md"), *PROJECT.glob("configs/**/*.md")}:
        for link in _LINK.findall(prose(page)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            assert target.is_file(), f"{page.name}: {link}"
            if anchor:
                assert anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and others make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_file_that_is_named_is_there() -> None:
    named = re.compile(r"`((?:configs|docs|native|nri_policy|proto|systemd|tests|tools)/[^`\s]*)")
    for page in PAGES:
        for path in named.findall(prose(page)):
            assert (PROJECT / path).exists(), f"{page.name}: {path}"


def test_every_page_is_in_the_index() -> None:
    index = (PROJECT / "docs" / "README.md").read_text()
    docs = PROJECT / "docs"
    for path in sorted(docs.rglob("*")):
        if path.suffix in {".md", ".1"} and path.name != "README.md":
            assert f"]({path.relative_to(docs)})" in index, path.name


def test_every_command_is_listed() -> None:
    page = (PROJECT / "docs" / "commands.md").read_text()
    context = click.Context(main)
    for name in main.list_commands(context):
        found = main.get_command(context, name)
        inner = found.commands if isinstance(found, click.Group) else [""]
        for each in inner:
            assert f"`{f'{name} {each}'.strip()}`" in page, (name, each)


def test_every_metric_is_listed() -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text()
    sources = (PROJECT / "nri_policy" / "observability").glob("*.py")
    names = {
        name for path in sources for name in re.findall(r'"(nri_policy_\w+)"', path.read_text())
    }
    assert names, "they are written out in full"
    for name in names:
        assert f"`{name}" in page, name


def test_every_line_of_the_log_that_is_named_is_written() -> None:
    written = {
        call.args[0].value for _, call in log_calls() if isinstance(call.args[0], ast.Constant)
    }
    for page in PAGES:
        for event in re.findall(r"event=([a-z-]+)", page.read_text()):
            assert event in written, f"{page.name}: event={event}"


def test_what_the_readme_shows_of_explain_is_what_is_printed(furnished: Path) -> None:
    page = PROJECT / "README.md"
    (commands,) = (
        each[:2] for each in blocks(page) if "--stay" in each[0] and " explain " in each[1]
    )
    (shown,) = re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
    path = f"{furnished / '.venv' / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script(commands, furnished)],
        cwd=furnished,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1"},
    )
    assert done.stdout == shown, done.stderr


def test_what_the_readme_calls_missing_is_missing() -> None:
    """And what the program accepts without effect is called missing there."""
    page = (PROJECT / "README.md").read_text()
    missing = page.partition("## What is not there")[2].partition("\n## ")[0]
    keys = {*re.findall(r"`([\w-]+)`", " ".join(re.findall(r"\(([^)]*)\)", missing)))}
    assert keys == (Settings.LATER | ControlSettings.LATER) - {"cpu"}, "of balloons"
    for said, section in (("OpenTelemetry", Instrumentation), ("SST", CPUClass), ("its log", Log)):
        assert (said in missing) == bool(section.LATER), said


def test_the_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    readme = (PROJECT / "README.md").read_text()
    page = (PROJECT / "docs/performance.md").read_text()
    limits = page.partition("## Limits that the README promises")[2].partition("\n## ")[0]
    of_the_readme = re.search(r"\*\*([\d.]+ ms)\*\* .* \*\*([\d.]+ ms)\*\*", readme)
    refused = re.search(r"\*\*(\d+) refused\*\* .* refuses \*\*(\d+)\*\*", readme)
    assert of_the_readme
    assert refused
    for row, said in (("waits for the policy", of_the_readme), ("resizes refused", refused)):
        assert re.search(rf"^\| [^|]*{row}[^|]* \| {said[1]} \| {said[2]} \|", page, re.MULTILINE)
    bounds = dict(re.findall(r"^\| ([\w ,]+) \| ([\d.]+) m?[sM]", limits, re.MULTILINE))
    assert f"less than {bounds['a new container waits, median']} milliseconds" in readme
    assert f"less than {bounds['resident memory']} MiB" in readme

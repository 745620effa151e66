"""`topology`: what it prints, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.hardware import synthetic

SPEC = "package:2(pmem=256GiB) numa:2(memory=64GiB) core:2 pu:2 isolated=4-5 offline=15"
SETTINGS = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec:
  availableResources: {cpu: "exclude-cpuset:12-13"}
  reservedResources: {cpu: "cpuset:0,8"}
"""


GOLDEN = """\
2 sockets · 6 NUMA nodes · 8 cores · 15 CPUs · 256 GiB dram · 512 GiB pmem
root: 0-14 · dram 0-3: 256 GiB · pmem 4-5: 512 GiB
┌ socket #0: 0-7 ───────────────────────────────────────────────────────────┐
│ ╭ NUMA node #0: 0-3 ───────────────╮ ╭ NUMA node #1: 4-7 ───────────────╮ │
│ │ ··                               │ │ i·                               │ │
│ │ ··                               │ │ i·                               │ │
│ ╰ dram 0: 64 GiB · pmem 4: 256 GiB ╯ ╰ dram 1: 64 GiB · pmem 4: 256 GiB ╯ │
└ dram 0-1: 128 GiB · pmem 4: 256 GiB ──────────────────────────────────────┘
┌ socket #1: 8-14 ──────────────────────────────────────────────────────────┐
│ ╭ NUMA node #2: 8-11 ──────────────╮ ╭ NUMA node #3: 12-14 ─────────────╮ │
│ │ ··                               │ │ ··                               │ │
│ │ ··                               │ │ ·                                │ │
│ ╰ dram 2: 64 GiB · pmem 5: 256 GiB ╯ ╰ dram 3: 64 GiB · pmem 5: 256 GiB ╯ │
└ dram 2-3: 128 GiB · pmem 5: 256 GiB ──────────────────────────────────────┘
╭ in no pool: 15 ───────────────────────────────────────────────────────────╮
│ x                                                                         │
╰───────────────────────────────────────────────────────────────────────────╯
· shared, idle   i isolated   x offline   one column per core, one row per thread

CPUs
  online    15  0-14
  offline    1  15
  isolated   2  4-5

Pools
  pool                stands for     count  CPUs   dram          pmem
  root                system            15  0-14   0-3: 256 GiB  4-5: 512 GiB
  ├─ socket #0        package, die       8  0-7    0-1: 128 GiB  4: 256 GiB
  │  ├─ NUMA node #0  numa, l3cache      4  0-3    0: 64 GiB     4: 256 GiB
  │  └─ NUMA node #1  numa, l3cache      4  4-7    1: 64 GiB     4: 256 GiB
  └─ socket #1        package, die       7  8-14   2-3: 128 GiB  5: 256 GiB
     ├─ NUMA node #2  numa, l3cache      4  8-11   2: 64 GiB     5: 256 GiB
     └─ NUMA node #3  numa, l3cache      3  12-14  3: 64 GiB     5: 256 GiB

Memory nodes
  node  kind   memory  CPUs   remarks
     0  dram   64 GiB  0-3
     1  dram   64 GiB  4-7
     2  dram   64 GiB  8-11
     3  dram   64 GiB  12-14
     4  pmem  256 GiB  -      nearest to node 0-1; dax4.0 lies in persistent memory; movable only
     5  pmem  256 GiB  -      nearest to node 2-3; dax5.0 lies in persistent memory; movable only

Caches
  level  type         count    size  shared by
  L1     data             8  48 KiB  1 to 2 CPUs
  L1     instruction      8  32 KiB  1 to 2 CPUs
  L2     unified          8   2 MiB  1 to 2 CPUs
  L3     unified          4  32 MiB  3 to 4 CPUs

Distances
     0  1  2  3  4  5
  0 10 11 21 21 17 28
  1 11 10 21 21 17 28
  2 21 21 10 11 28 17
  3 21 21 11 10 28 17
  4 17 17 28 28 10 28
  5 28 28 17 17 28 10
"""


def printed(*args: str, width: int = 100) -> str:
    """Return what `topology` prints of the machine."""
    runner = CliRunner(env={"COLUMNS": str(width)})
    result = runner.invoke(main, ["topology", "--synthetic", SPEC, *args])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_a_terminal_without_unicode_gets_its_picture_in_ascii() -> None:
    runner = CliRunner(charset="ascii", env={"COLUMNS": "100", "FORCE_COLOR": "1"})
    result = runner.invoke(main, ["topology", "--synthetic", "core:3 pu:2 isolated=1"], color=True)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in result.stdout.splitlines()][
        :5
    ] == [
        "1 socket . 1 NUMA node . 3 cores . 6 CPUs . 4 GiB dram",
        "+ socket #0: 0-5 +",
        "| ...            |",
        "| i..            |",
        "+ dram 0: 4 GiB -+",
    ]


def test_the_table_shows_the_machine_from_the_whole_to_the_parts() -> None:
    lines = [line.rstrip() for line in printed().splitlines()]
    assert lines == GOLDEN.splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(len, printed(width=width).splitlines())) <= width


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_document_has_the_specified_fields(form: str) -> None:
    text = printed("-o", form)
    document = json.loads(text) if form == "json" else yaml.safe_load(text)
    assert list(document) == ["machine", "pools"]
    assert {"cpus", "numa_nodes", "distances", "devices", "notes"} <= document["machine"].keys()
    top = document["pools"][-1]
    assert top == {
        "id": 6,
        "name": "root",
        "levels": ["system"],
        "parent": None,
        "depth": 0,
        "cpus": "0-14",
        "isolated": "4-5",
        "reserved": "",
        "sharable": "0-3,6-14",
        "memory": {"dram": "0-3", "pmem": "4-5", "hbm": ""},
    }
    node = document["pools"][0]
    assert (node["name"], node["parent"], node["depth"]) == ("NUMA node #0", 2, 2)
    assert node["levels"] == ["numa", "l3cache"]


def test_settings_show_what_they_reserve_and_keep_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("settings") / "settings.yaml"
    file.write_text(SETTINGS)
    top = json.loads(printed("-o", "json", "--settings", str(file)))["pools"][-1]
    assert top["cpus"] == "0-11,14"
    assert (top["reserved"], top["isolated"], top["sharable"]) == ("0,8", "4-5", "1-3,6-7,9-11,14")
    table = printed("--settings", str(file))
    assert "not available   2  12-13" in table
    assert "reserved        2  0,8" in table


def test_colour_follows_the_environment() -> None:
    runner = CliRunner()
    arguments = ["topology", "--synthetic", SPEC]
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": None}
    assert "\x1b[1;36m" in runner.invoke(main, arguments, env=forced).stdout
    plain = runner.invoke(main, arguments, env={**forced, "NO_COLOR": "1"}).stdout
    assert "36m" not in plain


def test_cpus_can_be_drawn_as_their_ids() -> None:
    shown = printed("--cpu-ids")
    assert " 0  2 " in shown
    assert " 1  3 " in shown
    assert "shared, idle" not in shown


def test_the_free_memory_of_a_live_machine_is_shown(tmp_path: Path) -> None:
    synthetic.write(SPEC, tmp_path)
    meminfo = next(tmp_path.glob("sys/devices/system/node/node0/meminfo"))
    meminfo.write_text("Node 0 MemTotal: 4194304 kB\nNode 0 MemFree: 1048576 kB\n")
    result = CliRunner().invoke(main, ["topology", "--host-root", str(tmp_path)])
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["node", "kind", "memory", "free"] in [row[:4] for row in rows]
    assert ["0", "dram", "4", "GiB", "1", "GiB"] in [row[:6] for row in rows]

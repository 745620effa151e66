from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_policy.cli import main
from nri_policy.cli.failure import Exit
from nri_policy.cli.node import config
from nri_policy.cli.output import local_time
from nri_policy.hardware.synthetic import write
from nri_policy.report import SettingsReport
from nri_policy.settings import ReloadResult
from nri_policy.settings_sources.settings_file import SettingsFile
from tests.support.daemon import served
from tests.support.fake_cpus import HYBRID, two_kinds
from tests.support.fake_resctrl import FakeResctrl
from tests.unit.cli.test_daemon_commands import beside_a_daemon, run

HEAD = "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\nmetadata: {name: default}\n"
GOOD = "spec:\n  reservedResources: {cpu: 2}\n  unlimitedBurstable: numa\n  colocatePods: false\n"


@pytest.fixture(name="check")
def _check(tmp_path: Path) -> Check:
    return Check(tmp_path / "settings.yaml")


class Check:
    """`config check` of a text."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, spec: str, *args: str) -> Result:
        self.path.write_text(HEAD + spec)
        runner = CliRunner(env={"COLUMNS": "300"})  # paths of tests are long
        return runner.invoke(main, ["config", "check", str(self.path), *args])


def test_good_settings_are_shown_with_who_set_each(check: Check) -> None:
    result = check(GOOD, "--all")
    assert result.exit_code == 0, result.output
    assert "these settings are valid" in result.stdout
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    value, path = rows["unlimitedBurstable"]
    assert value == "numa"
    assert str(check.path).startswith(path), "it goes on in the next line"
    assert rows["pinCPU"] == ["true", "default"]
    assert rows["availableResources.cpu"] == ["all", "default"]


def test_only_what_differs_from_the_defaults_is_shown(check: Check) -> None:
    shown = check(GOOD).stdout
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert rows["unlimitedBurstable"] == ["numa"]
    assert "pinCPU" not in rows
    assert "colocatePods" not in rows, "it is in the file, with its default"
    assert "other fields have their defaults: --all shows them" in shown


def test_cpus_that_are_not_available_cannot_be_reserved_on_any_machine(check: Check) -> None:
    result = check(
        "spec:\n  availableResources: {cpu: 'cpuset:0-3'}\n"
        "  reservedResources: {cpu: 'cpuset:3,100-101'}\n"
    )
    assert result.exit_code == Exit.SETTINGS
    assert "line 6, column 23: spec.reservedResources.cpu: 100-101 is not in" in result.stdout
    result = check(
        "spec:\n  availableResources: {cpu: 'exclude-cpuset:0-3'}\n"
        "  reservedResources: {cpu: 'cpuset:3-5'}\n"
    )
    assert "3 is not in the CPUs of availableResources.cpu" in result.stdout
    fine = check(
        "spec:\n  availableResources: {cpu: 'cpuset:0-3'}\n  reservedResources: {cpu: 'cpuset:3'}\n"
    )
    assert fine.exit_code == 0


def test_all_errors_are_told_at_once_with_their_paths(check: Check) -> None:
    result = check("spec: {pinCPU: maybe, colocatePod: true, reservedResources: {cpu: none}}")
    assert result.exit_code == Exit.SETTINGS
    assert "3 errors" in result.stdout
    assert "spec.pinCPU: 'maybe' is not true or false" in result.stdout
    assert "spec.colocatePod: unknown field; did you mean 'colocatePods'?" in result.stdout
    assert "  line 4, column 8: spec.pinCPU: 'maybe'" in result.stdout
    document = json.loads(check("spec: {pinCPU: maybe}", "-o", "json").stdout)
    assert document["valid"] is False
    assert {(each["line"], each["column"]) for each in document["errors"]} == {(4, 8), (4, 1)}
    assert {each["path"] for each in document["errors"]} == {
        "spec.pinCPU",
        "spec.reservedResources.cpu",
    }


def test_what_has_no_effect_yet_is_a_note_and_no_error(check: Check) -> None:
    result = check(GOOD + "  control: {cpu: {}}\n", "-o", "yaml")
    assert result.exit_code == 0
    document = yaml.safe_load(result.stdout)
    assert document["notices"] == ["spec.control.cpu: it has no effect: use cpuClasses"]
    assert document["valid"] is True
    assert "note: spec.control" in check(GOOD + "  control: {cpu: {}}\n").stdout


def test_classes_that_the_settings_refer_to_nowhere_are_named(check: Check) -> None:
    classes = "  schedulingClasses: [{name: a, nice: 1}, {name: b, nice: 2}, {name: c, nice: 3}]\n"
    blockio = (
        "  control: {blockio: {enable: true, usePodQoSAsDefaultClass: true,"
        " classes: {Burstable: [], slow: []}}}\n"
    )
    used = "  namespaceSchedulingClasses: {ci: a}\n  podQoSSchedulingClasses: {besteffort: c}\n"
    document = json.loads(check(GOOD + classes + blockio + used, "-o", "json").stdout)
    assert document["notices"] == [
        "scheduling classes that only annotations can ask for: b",
        "block I/O classes that only annotations can ask for: slow",
    ]
    assert json.loads(check(GOOD + "  control: {}\n", "-o", "json").stdout)["notices"] == []


@pytest.mark.parametrize(
    ("reserved", "code", "said"),
    [
        ("5", Exit.SETTINGS, "cannot reserve 5 CPUs of 4 in availableResources.cpu"),
        ("3001m", 0, "note: no CPU is left for pods"),
        ("cpuset:4-7", 0, "note: no CPU is left for pods"),
        ("exclude-cpuset:0-3", 0, "note: no CPU is left for pods"),
        ("3", 0, None),
        ("cpuset:4-6", 0, None),
        ("exclude-cpuset:5", 0, None),
    ],
)
def test_a_list_of_available_cpus_tells_what_is_left_on_any_machine(
    check: Check, reserved: str, code: int, said: str | None
) -> None:
    available = "availableResources: {cpu: 'cpuset:4-7'}"
    spec = f"spec: {{{available}, reservedResources: {{cpu: '{reserved}'}}}}"
    result = check(spec)
    assert result.exit_code == code
    assert said is None or said in result.stdout
    assert ("no CPU is left" in result.stdout) == (said is not None and code == 0)
    on_one = check(spec, "--synthetic", "core:8")
    assert on_one.stdout.count("no CPU is left") == result.stdout.count("no CPU is left")


@pytest.mark.parametrize(
    ("available", "absent"),
    [("cpuset:0-9,12", "8-9,12"), ("cpuset:2-7", None), ("exclude-cpuset:12", None)],
)
def test_available_cpus_that_a_machine_lacks_are_noted(
    check: Check, available: str, absent: str | None
) -> None:
    spec = f"spec: {{availableResources: {{cpu: '{available}'}}, reservedResources: {{cpu: 1}}}}"
    result = check(spec, "--synthetic", "core:8")
    assert result.exit_code == 0
    note = f"note: availableResources.cpu: this machine has no CPUs {absent}\n"
    assert (note in result.stdout) == (absent is not None)
    assert ("this machine has no CPUs" in result.stdout) == (absent is not None)


def test_it_says_whether_a_daemon_would_start_on_a_machine(check: Check) -> None:
    result = check(GOOD, "--synthetic", "package:2 core:2 pu:2")
    assert result.exit_code == 0
    assert "The daemon would start on this machine:" in result.stdout
    rows = dict(line.rsplit(maxsplit=1) for line in result.stdout.splitlines() if "CPUs" in line)
    assert rows["CPUs reserved"] == "0-1"
    few = check("spec: {reservedResources: {cpu: 9}}", "--synthetic", "package:1 core:2")
    assert few.exit_code == Exit.SETTINGS
    said = "line 4, column 28: spec.reservedResources.cpu: cannot reserve 9 CPUs"
    assert said in " ".join(few.stdout.split())
    document = json.loads(
        check("spec: {reservedResources: {cpu: 9}}", "--synthetic", "core:2", "-o", "json").stdout
    )
    assert [each["path"] for each in document["errors"]] == ["spec.reservedResources.cpu"]
    every = check("spec: {reservedResources: {cpu: cpuset:0-1}}", "--synthetic", "core:2 pu:1")
    assert "note: no CPU is left for pods: reservedResources.cpu takes 0-1\n" in every.stdout


def test_a_text_that_is_no_document_is_an_error_of_settings(check: Check) -> None:
    check.path.write_text("[")
    result = CliRunner().invoke(main, ["config", "check", str(check.path)])
    assert result.exit_code == Exit.SETTINGS
    assert "1 error" in result.stdout


def test_a_refused_reload_is_shown() -> None:
    reload = ReloadResult(accepted=False, origin="a file", reason="spec.x: no", time=0.0)
    report = SettingsReport(origin="a file", notices=(), settings=(), latest_reload=reload)
    said = [str(each) for each in config._render_settings(report, every=False)]
    assert f"reload of {local_time(0)} refused: spec.x: no" in said
    without = config._render_settings(replace(report, latest_reload=None), every=False)
    assert not any("refused" in str(each) for each in without)


def test_config_show_prints_the_settings_in_force(tmp_path: Path) -> None:
    def asked(control: Path) -> None:
        shown = run(control, "config", "show")
        assert shown.exit_code == 0
        assert shown.stdout.startswith("from test\n")
        rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines() if line}
        assert rows["unlimitedBurstable"] == ["numa"]
        document = json.loads(run(control, "config", "show", "-o", "json").stdout)
        assert yaml.safe_load(run(control, "config", "show", "-o", "yaml").stdout) == document

    beside_a_daemon(tmp_path, asked, unlimitedBurstable="numa")


def test_a_reload_says_what_came_of_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"

    def asked(control: Path) -> None:
        file.write_text(HEAD + GOOD)
        taken = run(control, "config", "reload")
        assert (taken.exit_code, taken.output) == (0, f"{file}: in force\n")
        assert f"from {file}" in run(control, "config", "show").stdout
        file.write_text(HEAD + "spec: {pinCPU: maybe}")
        refused = run(control, "config", "reload")
        assert refused.exit_code == Exit.NO
        assert "refused, the old settings stay: " in refused.output
        assert "spec.pinCPU: 'maybe' is not true or false" in refused.output

    async def both() -> None:
        async with served(tmp_path, load=SettingsFile(file).load) as node:
            await asyncio.to_thread(asked, node.socket)

    asyncio.run(both())


def test_a_node_that_reads_no_settings_again_refuses_a_reload(tmp_path: Path) -> None:
    async def both() -> Result:
        async with served(tmp_path) as node:
            return await asyncio.to_thread(run, node.socket, "config", "reload")

    refused = asyncio.run(both())
    assert refused.exit_code == Exit.NO
    assert "refused, the old settings stay: this node reads no settings again" in refused.output
    assert "what-if --settings FILE" in refused.output


def test_values_of_the_chart_are_checked_from_stdin() -> None:
    values = "config: {reservedResources: {cpu: 750m}}"
    good = CliRunner().invoke(main, ["config", "check", "-"], input=values)
    assert good.exit_code == 0, good.output
    assert good.stdout.startswith("standard input: these settings are valid\n")
    command = ["config", "check", "-", "--synthetic", "package:1 core:2"]
    bad = CliRunner().invoke(main, command, input=values.replace("750m", "9"))
    assert bad.exit_code == Exit.SETTINGS
    assert "line 1, column 30: config.reservedResources.cpu: cannot reserve 9" in bad.stdout


@pytest.mark.parametrize(
    ("chart", "daemon", "said"),
    [
        ("true", "false", "note: dra.enabled: config.dra.enabled is false"),
        ("false", "true", "note: config.dra.enabled: the chart's own dra.enabled is false"),
        ("true", "true", None),
        ("false", "false", None),
    ],
)
def test_values_with_one_of_the_two_switches_for_claims_are_noticed(
    chart: str, daemon: str, said: str | None
) -> None:
    spec = f"{{reservedResources: {{cpu: 750m}}, dra: {{enabled: {daemon}}}}}"
    values = f"dra: {{enabled: {chart}}}\nconfig: {spec}\n"
    done = CliRunner().invoke(main, ["config", "check", "-"], input=values)
    assert done.exit_code == 0, done.output
    notes = [line for line in done.stdout.splitlines() if "dra.enabled is" in line]
    assert [line.startswith(said or "-") for line in notes] == ([] if said is None else [True])


_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
_DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b}\n"


@pytest.mark.parametrize(
    ("documents", "named"),
    [(_POD, "Pod"), (f"{_POD}---\n{_DEPLOYMENT}", "Pod a, Deployment b")],
)
def test_a_file_without_settings_is_one_error(documents: str, named: str) -> None:
    done = CliRunner().invoke(main, ["config", "check", "-"], input=documents)
    assert done.exit_code == Exit.SETTINGS
    assert (done.stdout, done.stderr) == (
        "",
        f"nri-policy: standard input: no settings in it: {named}\n",
    )


def test_settings_of_another_version_are_not_another_object() -> None:
    text = "apiVersion: v1\nkind: TopologyAwarePolicy\nspec: {reservedResources: {cpu: 1}}\n"
    done = CliRunner().invoke(main, ["config", "check", "-"], input=text)
    assert done.exit_code == Exit.SETTINGS
    assert "apiVersion: 'v1' is not config.nri/v1alpha1" in done.stdout


def test_objects_that_are_no_settings_are_skipped_and_named() -> None:
    daemonset = Path(__file__).parents[4] / "configs/kubernetes/daemonset.yaml"
    text = daemonset.read_text()
    done = CliRunner().invoke(main, ["config", "check", "-"], input=text)
    assert done.exit_code == 0, done.output
    skipped = "skipped, because they are no settings: ServiceAccount nri-policy, DaemonSet"
    assert skipped in done.stdout
    *_, daemonset_alone = text.split("---\n")
    done = CliRunner().invoke(main, ["config", "check", "-"], input=daemonset_alone)
    assert done.exit_code == Exit.SETTINGS, "there are no settings at all"
    wrong = text.replace("kind: TopologyAwarePolicy", "kind: TopologyAwarePolcy")
    done = CliRunner().invoke(main, ["config", "check", "-", "-o", "json"], input=wrong)
    assert [each["valid"] for each in json.loads(done.stdout)] == [False]


def test_values_of_the_chart_say_what_is_left_to_helm() -> None:
    values = "image: {tagg: x}\nconfig: {reservedResources: {cpu: 1}}\n"
    done = CliRunner().invoke(main, ["config", "check", "-"], input=values)
    assert "note: only `config` is checked here; helm checks image" in done.stdout


def test_every_document_of_a_file_is_checked_and_named(check: Check) -> None:
    """As the objects of a cluster are kept together; lines are those of the file."""
    group = HEAD.replace("default", "group.a") + "spec: {reservedResources: {cpu: 1}, pinCPU: 1}\n"
    text = f"{GOOD}# more\n---\n# of a group\n{group}---\n# nothing\n---\nspec: [\n"
    result = check(text)
    assert result.exit_code == Exit.SETTINGS
    shown = [line for line in result.stdout.splitlines() if str(check.path) in line]
    assert shown == [
        f"{check.path}, default: these settings are valid",
        f"{check.path}, group.a: 1 error",
        f"{check.path}, line 17: 1 error",
    ]
    assert "line 14, column 37: spec.pinCPU: 1 is not true or false" in result.stdout
    reports = json.loads(check(text, "-o", "json").stdout)
    assert [(each["name"], each["valid"]) for each in reports] == [
        ("default", True),
        ("group.a", False),
        ("line 17", False),
    ]


def test_a_second_document_of_one_kind_and_name_is_noted(check: Check) -> None:
    note = "note: in a cluster it replaces the document above it that has the same kind and name\n"
    twice = check(f"{GOOD}---\n{HEAD}{GOOD}")
    assert twice.exit_code == 0
    assert twice.stdout.count(note) == 1
    assert twice.stdout.index(note) > twice.stdout.rindex("these settings are valid")
    for field, other in (
        ("name: default", "name: group.a"),
        ("name: default", "name: default, namespace: n"),
    ):
        assert note not in check(f"{GOOD}---\n{HEAD.replace(field, other)}{GOOD}").stdout


CPU_CLASSES = """spec:
  reservedResources: {cpu: 1}
  sharedPoolCPUClass: calm
  cpuClasses:
  - {name: calm, maxFreq: base, disabledCstates: []}
  - {name: awake, minFreq: turbo, disabledCstates: [C6, C8]}
"""


def test_what_cpu_classes_set_on_a_machine_is_shown(check: Check, tmp_path: Path) -> None:
    write(HYBRID, tmp_path)
    two_kinds(tmp_path)
    result = check(CPU_CLASSES, "--host-root", str(tmp_path))
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["calm", "0-1", "max_freq", "2.4", "GHz"] in lines
    awake = "awake 0-1 min_freq 3.6 GHz, resume_latency 2 µs"
    assert awake.split() in lines
    report = json.loads(check(CPU_CLASSES, "--host-root", str(tmp_path), "-o", "json").stdout)
    assert report["cpu_classes"][-1] == {
        "name": "awake",
        "cpus": "2-3",
        "values": {"min_freq": "2800000", "resume_latency": "1"},
    }


def test_cpu_and_rdt_classes_that_only_annotations_name_are_listed(check: Check) -> None:
    shown = check(CPU_CLASSES).stdout
    assert "CPU classes that only annotations can ask for: awake" in shown
    by_qos = RDT.replace("enable: true", "enable: true\n      usePodQoSAsDefaultClass: true")
    shown = check(by_qos).stdout
    assert "RDT classes that only annotations can ask for: gold\n" in shown


def test_settings_that_need_the_tuner_are_named(check: Check) -> None:
    note = ": no effect without the tuner: start it (docs/tuning.md)\n"
    assert note not in check(GOOD).stdout
    isolates = f"{CPU_CLASSES}  isolateInterrupts: exclusive\n"
    assert f"note: cpuClasses, isolateInterrupts{note}" in check(isolates).stdout
    assert f"note: control.rdt.partitions{note}" in check(RDT).stdout


def test_a_cpu_class_that_the_machine_cannot_have_is_an_error(check: Check, tmp_path: Path) -> None:
    write(HYBRID, tmp_path)
    two_kinds(tmp_path)
    result = check(CPU_CLASSES.replace("C6", "C7"), "--host-root", str(tmp_path))
    assert result.exit_code == Exit.SETTINGS
    assert "line 9, column 35" in result.stdout
    assert "spec.cpuClasses[1].disabledCstates: 'C7' is not a C-state" in result.stdout
    virtual = check(CPU_CLASSES, "--synthetic", HYBRID)
    assert virtual.exit_code == 0
    assert "cpuClasses[0].maxFreq: no effect here: this machine has no cpufreq" in virtual.stdout


RDT = """spec:
  reservedResources: {cpu: 1}
  control:
    rdt:
      enable: true
      partitions:
        exclusive: {l3Allocation: {all: {unified: 60%}}, classes: {gold: {}}}
        shared:
          l3Allocation: {all: {unified: 40%}}
          classes: {BestEffort: {mbAllocation: {"0": [50%]}}}
"""


def test_the_shares_of_rdt_classes_on_a_machine_are_shown(check: Check, tmp_path: Path) -> None:
    write(HYBRID, tmp_path)
    FakeResctrl(tmp_path, caches={"L3": 20}, way=3 << 19)
    result = check(RDT, "--host-root", str(tmp_path))
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["gold", "L3", "0-1", "fff00", "18", "MiB"] in lines, result.stdout
    assert ["BestEffort", "L3", "0-1", "ff", "12", "MiB"] in lines
    assert ["BestEffort", "MB", "0", "50"] in lines
    assert ["BestEffort", "MB", "1", "100"] in lines
    few = check(
        RDT.replace("gold: {}", "gold: {l3Allocation: {all: {unified: 0-12}}}"),
        "--host-root",
        str(tmp_path),
    )
    assert few.exit_code == Exit.SETTINGS

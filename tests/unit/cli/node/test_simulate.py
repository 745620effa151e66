"""`simulate`: what it prints, and how it ends."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main

SPEC = "package:2 numa:2 core:2 pu:2"
SCENARIO = """\
- settings: {reservedResources: {cpu: 750m}, preferIsolatedCPUs: false}
- apply:
    - {apiVersion: v1, kind: Pod, metadata: {name: small},
       spec: {containers: [{name: c, resources: {limits: {cpu: 1500m, memory: 4Mi}}}]}}
    - {apiVersion: v1, kind: Pod, metadata: {name: large, namespace: ns},
       spec: {containers: [{name: c, resources: {limits: {cpu: 16, memory: 4Mi}}}]}}
- expect: {small/c: {cpus: "4-7"}, ns/large/c: {state: error}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def simulate(path: Path, *args: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr."""
    result = CliRunner().invoke(main, ["simulate", str(path), "--synthetic", SPEC, *args])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_json_is_a_list_with_the_documented_fields_of_each_step(scenario: Path) -> None:
    code, out, _ = simulate(scenario, "-o", "json")
    steps = json.loads(out)
    assert code == 0
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert steps[0]["error"] is None
    assert steps[0]["containers"] == {}
    assert {pool["name"] for pool in steps[0]["pools"]} == {
        *(f"NUMA node #{n}" for n in range(4)),
        *(f"socket #{n}" for n in range(2)),
        "root",
    }
    assert steps[1]["error"].startswith("ns/large/c: no pool has room for 16 exclusive CPUs")
    assert steps[1]["containers"]["default/small/c"] == {
        "qos": "Guaranteed",
        "sort": "normal",
        "state": "running",
        "pool": "NUMA node #1",
        "cpus": "4-7",
        "exclusive": "4",
        "shared_milli": 500,
        "isolated": "",
        "mems": "1",
        "shares": 1536,
        "error": None,
        "updated_by": [],
    }
    refused = steps[1]["containers"]["ns/large/c"]
    assert refused.keys() == steps[1]["containers"]["default/small/c"].keys()
    assert (refused["state"], refused["pool"], refused["cpus"]) == ("error", None, "")
    assert f"ns/large/c: {refused['error']}" == steps[1]["error"]
    assert steps[2]["mismatches"] == []


def test_the_pools_have_what_is_documented(scenario: Path) -> None:
    _, out, _ = simulate(scenario, "-o", "json")
    pools = {pool["name"]: pool for pool in json.loads(out)[-1]["pools"]}
    node = pools["NUMA node #1"]
    assert {
        key: node[key]
        for key in (
            *("levels", "cpus", "isolated", "reserved", "sharable", "shared_milli_granted"),
            *("shared_milli_allocatable", "exclusive", "containers"),
        )
    } == {
        "levels": ["numa", "l3cache"],
        "cpus": "4-7",
        "isolated": "",
        "reserved": "",
        "sharable": "4-7",
        "shared_milli_granted": 500,
        "shared_milli_allocatable": 2500,
        "exclusive": "4",
        "containers": ["default/small/c"],
    }
    assert pools["root"]["reserved"] == "0"


def test_an_expectation_that_is_not_met_is_exit_code_1(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace('cpus: "4-7"', 'cpus: "4"'))
    code, out, _ = simulate(scenario, "-o", "json")
    assert code == 1
    assert json.loads(out)[2]["mismatches"] == [
        {"container": "default/small/c", "field": "cpus", "want": "4", "got": "4-7"}
    ]
    code, out, _ = simulate(scenario)
    assert code == 1
    assert "not as expected: default/small/c: cpus want '4', got '4-7'" in out


def test_a_scenario_without_settings_takes_them_from_a_file(scenario: Path) -> None:
    scenario.write_text(SCENARIO.partition("\n")[2])
    settings = scenario.with_name("settings.yaml")
    settings.write_text(
        "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\nmetadata: {name: default}\n"
        "spec: {reservedResources: {cpu: 750m}, preferIsolatedCPUs: false}\n"
    )
    code, out, err = simulate(scenario, "--settings", str(settings), "-o", "json")
    assert (code, "count until then" in err) == (0, False)
    assert json.loads(out)[0]["containers"]["default/small/c"]["cpus"] == "4-7"
    scenario.write_text(SCENARIO)
    assert (
        "note: step 1 sets other settings: those of --settings count until then only"
        in simulate(scenario, "--settings", str(settings))[2]
    ), "a scenario's own replace them"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- expect:", "- expct:", "line 7: step 3: 'expct' is not a step; did you mean 'expect'?"),
        ("cpus:", "cpu_set:", "line 7: step 3: expect: small/c: 'cpu_set' is not a field"),
        (
            "cpu: 16",
            "cpu: many",
            "line 5: step 2: apply: [1]: pod 'large': spec.containers[0].resources",
        ),
        (
            "preferIsolatedCPUs: false}",
            "1: false}",
            "line 1: step 1: settings: a map (2 entries) is not a map",
        ),
        (
            "apiVersion: v1, kind: Pod, metadata: {name: large",
            "apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: large",
            "line 5: step 2: apply: [1]: a ResourceClaim is not applied; the step `claims`",
        ),
        ("- settings", " - - settings", "line 2"),
    ],
)
def test_a_bad_scenario_is_a_wrong_usage_that_names_step_and_field(
    scenario: Path, old: str, new: str, message: str
) -> None:
    scenario.write_text(SCENARIO.replace(old, new))
    code, out, err = simulate(scenario, "-o", "json")
    assert (code, out) == (2, "")
    assert f"{scenario}: {message}" in err


def test_a_node_stays_in_a_folder_that_is_empty(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text("- advance: 1s\n")
    (tmp_path / "empty").mkdir()
    _, _, err = simulate(scenario, "--stay", str(tmp_path / "empty"))
    assert "the daemon did not start" in err, "that is the scenario's fault, not the folder's"


def test_a_node_stays_only_in_a_folder_that_is_new_or_empty(scenario: Path, tmp_path: Path) -> None:
    def said() -> str:
        code, _, err = simulate(scenario, "--stay", str(tmp_path))
        assert (code, err.count("\n")) == (1, 1)
        return err

    (tmp_path / "other").touch()
    assert "the folder exists, but is not of a simulated node: name another folder" in said()
    (tmp_path / "store").mkdir()
    assert f"an earlier node's state is there: rm -r {tmp_path}, or name another" in said()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "control.sock"))
        assert "an earlier node's state" in said()
        other.listen()
        assert "a node runs there: ask that one, or end it by Ctrl-C" in said()


def test_a_node_that_did_not_start_leaves_no_folder(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text("- advance: 1s\n")
    code, _, err = simulate(scenario, "--stay", str(tmp_path / "node"))
    assert (code, "the daemon did not start" in err) == (1, True)
    assert not (tmp_path / "node").exists()


FAILED = (
    "simulate: step 2: failed, and the scenario does not expect it: ns/large/c:"
    " no pool has room for 16"
)


@pytest.mark.parametrize("form", ["table", "json", "svg"])
def test_a_step_that_fails_unforeseen_is_exit_code_1_and_named(scenario: Path, form: str) -> None:
    scenario.write_text(SCENARIO.partition("- expect")[0] + "- advance: 1s\n")
    code, _, err = simulate(scenario, "-o", form)
    assert code == 1
    assert err.startswith(FAILED), "and not in the words of the log, too"


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        ("{ns/large/c: {state: error}}", 0),
        ("{ns/large/c: {error: no pool}}", 0),
        ("{error: 16 exclusive CPUs}", 0),
        ("{ns/large/c: {cpus: ''}}", 1),
        ("{small/c: {state: running}}", 1),
    ],
)
def test_a_failure_is_foreseen_by_an_expectation_of_it(
    expected: str, code: int, scenario: Path
) -> None:
    scenario.write_text(SCENARIO.partition("- expect")[0] + f"- expect: {expected}\n")
    assert simulate(scenario)[0] == code
    scenario.write_text(scenario.read_text().replace("- expect", "- advance: 1s\n- expect"))
    assert simulate(scenario)[0] == 1, "it has to stand right after the step"


def test_a_resize_that_fails_is_foreseen_by_its_text_alone(scenario: Path) -> None:
    amounts = "{requests: {cpu: 99}, limits: {cpu: 99}}"
    resize = f"- resize: {{pod: small, container: c, resources: {amounts}}}\n"
    scenario.write_text(SCENARIO + resize)
    code, _, err = simulate(scenario)
    assert (code, "simulate: step 4: failed" in err) == (1, True)
    scenario.write_text(SCENARIO + resize + "- expect: {error: 99 exclusive}\n")
    assert simulate(scenario)[0] == 0


def test_who_was_refused_is_shown_until_its_pod_goes(scenario: Path) -> None:
    scenario.write_text(SCENARIO + "- advance: 1s\n- delete: ns/large\n- advance: 1s\n")
    code, out, _ = simulate(scenario)
    assert code == 0
    steps = out.split("\nStep ")[1:]
    shown = [" ".join(step.split()).count("ns/large/c: no pool has room") for step in steps]
    assert shown == [0, 1, 1, 1, 0, 0]


def test_an_error_of_settings_has_its_line_in_the_scenario(scenario: Path) -> None:
    scenario.write_text("""\
- &first
  settings:
    pinCPU: maybe
    reservedResources: {cpu: 750m}
- settings:
    reservedResources:
      cpu: none
- *first
""")
    _, out, _ = simulate(scenario, "-o", "json")
    errors = [each["error"] for each in json.loads(out)]
    about = "the settings of this step: "
    assert errors[0] == f"{about}line 3, column 5: pinCPU: 'maybe' is not true or false"
    assert errors[1].startswith(f"{about}line 7, column 7: reservedResources.cpu: 'none' is not")
    assert errors[2] == f"{about}pinCPU: 'maybe' is not true or false", "of an alias none is known"


def test_a_daemon_that_does_not_start_is_exit_code_1(scenario: Path) -> None:
    scenario.write_text("- settings: {reservedResources: {cpu: 99}}\n- expect: {error: reserve}\n")
    code, _, err = simulate(scenario)
    assert (code, "simulate: the daemon did not start" in err) == (1, True)


def test_what_is_as_asked_for_is_a_note_and_what_is_not_a_warning(scenario: Path) -> None:
    scenario.write_text("""\
- settings: {reservedResources: {cpu: 750m}, dra: {enabled: true}}
- claims: {own: {cpu: [{driver: placement.nri, device: numa1, cpu: 2}]}}
- apply:
    apiVersion: v1
    kind: Pod
    metadata: {name: web}
    spec:
      resourceClaims: [{name: own, resourceClaimName: own}]
      containers:
        - {name: as-asked, resources: {requests: {cpu: 2}, claims: [{name: own}]}}
        - {name: less, resources: {requests: {cpu: 1}, claims: [{name: own}]}}
""")
    code, _, err = simulate(scenario)
    said = [line.partition(" CPU")[0] for line in err.splitlines()]
    assert (code, said) == (
        0,
        [
            "note: default/web/as-asked: 2",
            "warning: default/web/less: it requests 1",
            "note: default/web/less: 2",
        ],
    )

"""`nri-policy cluster place`: where groups would go, and what is said of those that go nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cluster_questions import job, run, write

SPEC = "rack:2 host:2 cpu:4 memory:8Gi"


@pytest.mark.parametrize("command", ["place", "explain", "plan"])
def test_a_topology_that_there_is_not_is_said(tmp_path: Path, command: str) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "nope"
    file = write(tmp_path / "job.yaml", asked)
    code, text = run(command, "-f", file, "--synthetic", SPEC)
    assert (code, "there is no topology 'nope'; there are: default" in text) == (1, True)


def test_a_scenario_goes_on_after_a_topology_that_there_is_not(tmp_path: Path) -> None:
    asked = job("j", 2)
    asked["spec"]["template"]["metadata"]["annotations"]["placement.nri/topology"] = "nope"
    steps = [{"apply": [asked]}, {"apply": [job("k", 2)]}]
    file = write(tmp_path / "steps.yaml", steps)
    code, text = run("simulate", file, "--synthetic", SPEC, "--steps", "-o", "json")
    assert code == 0
    states = [each["state"] for each in json.loads(text)["steps"][1]["groups"]]
    assert states == ["Unplaceable", "Placed"]

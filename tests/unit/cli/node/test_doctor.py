"""`nri-policy doctor`: its forms and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from nri_policy.cli import main
from tests.unit.doctor.hosts import Made


def asked(made: Made, *args: str) -> Result:
    where = made.where
    options = {
        "--host-root": where.host_root,
        "--settings": where.config,
        "--nri-socket": where.nri_socket,
        "--state-dir": where.state_dir,
        "--control-socket": where.control_socket,
    }
    words = [str(word) for option in options.items() for word in option]
    return CliRunner().invoke(main, ["doctor", *words, *args], env={"COLUMNS": "200"})


def test_findings_come_as_a_table_as_json_and_as_yaml(tmp_path: Path) -> None:
    made = Made(tmp_path)
    table = asked(made)
    assert (table.exit_code, table.stderr) == (1, "")
    assert "error    nri " in table.stdout
    assert "enable NRI and restart the runtime" in table.stdout
    document = json.loads(asked(made, "-o", "json").stdout)
    assert {"check", "verdict", "found", "remedy"} == document[0].keys()
    assert yaml.safe_load(asked(made, "-o", "yaml").stdout) == document


def test_a_node_with_nothing_worse_than_notes_is_code_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    facts = made.facts("devel")
    monkeypatch.setattr("nri_policy.cli.node.doctor.gather", lambda _where: facts)
    result = asked(made)
    assert result.exit_code == 0
    assert "note  runtime" in result.stdout
    assert result.stdout.endswith("Nothing has to be done.\n")


def test_the_settings_are_looked_up_below_the_hosts_root(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.write("etc/nri-policy/config.yaml", "kind: x\nspec: 1\n")
    shown = asked(made, "--settings", "/etc/nri-policy/config.yaml").stdout
    assert shown.count(f"{tmp_path}/etc/nri-policy/config.yaml: ") == 3
    assert shown.count("docs/settings.md explains them") == 1
    assert f"configs/ and docs/ are in {Path(__file__).parents[4]}" in " ".join(shown.splitlines())

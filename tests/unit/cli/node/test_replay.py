from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nri_policy.cli import main
from nri_policy.cli.failure import Exit
from nri_policy.cli.output import local_time
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.store.journal import Journal
from nri_policy.store.store import Store
from tests.support import nodes, stores

SETTINGS = """
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec:
  reservedResources: {cpu: 750m}
  preferIsolatedCPUs: false
  preferSharedCPUs: %s
"""


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Path:
    """Return the state folder of a daemon that has stopped."""
    state = tmp_path / "state"
    store, engine = stores.started(state)
    _live(store, engine)
    store.close()
    return state


def _live(store: Store, engine: Engine) -> None:
    for event in islice(stores.life(engine, seed=1), 60):
        stores.commit(store, engine, event, now=1e9)


def _replay(*args: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, args)])


def _settings(folder: Path, shared: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(SETTINGS % shared)
    return path


def test_a_journal_comes_out_as_it_was_recorded(state: Path) -> None:
    result = _replay(state)
    assert result.exit_code == 0, result.output
    assert "Every decision came out as it was recorded." in result.stdout
    assert local_time(1e9) in result.stdout
    assert result.stderr == "", "no progress where there is no terminal"


def test_the_store_of_a_running_daemon_can_be_read(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    _live(store, engine)
    assert _replay(tmp_path).exit_code == 0
    assert _replay(tmp_path / "store").exit_code == 0
    store.close()


def test_a_copy_can_be_read(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "journal.db"
    shutil.copy(state / "store" / "state.db", copy)
    document = json.loads(_replay(copy, "-o", "json").stdout)
    assert document["reproduced"] is True
    assert document["recorded"]["placed"] > 5
    assert "replayed" not in document


def test_it_is_a_no_where_a_decision_does_not_come_out_again(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Journal.records

    def without_the_first(journal: Journal, after: int = 0) -> Any:
        found = [*records(journal, after)]
        first = next(record for record in found if isinstance(record.event, Created))
        return iter([record for record in found if record is not first])

    monkeypatch.setattr(Journal, "records", without_the_first)
    result = _replay(state)
    assert result.exit_code == Exit.NO
    assert "came out differently" in result.stdout
    assert json.loads(_replay(state, "-o", "json").stdout)["differences"]
    tried = _replay(state, "--settings", _settings(tmp_path, "true"))
    assert tried.exit_code == 0, "other settings are tried all the same"
    assert "came out differently" in tried.stdout


def test_other_settings_are_compared_and_scored(state: Path, tmp_path: Path) -> None:
    path = _settings(tmp_path, "true")
    document = json.loads(_replay(state, "--settings", path, "-o", "json").stdout)
    assert document["replayed"]["placed"] > 5
    assert document["changes"]
    for change in document["changes"].values():
        assert change["recorded"] != change["replayed"]
        assert not (change["replayed"] or {}).get("exclusive")
    result = _replay(state, "--settings", path)
    assert result.exit_code == 0
    assert f"{len(document['changes'])} containers ended up elsewhere" in result.stdout


def test_another_machine_may_refuse_what_had_a_place(state: Path) -> None:
    one = "package:1 core:1 pu:2"
    document = json.loads(_replay(state, "--synthetic", one, "-o", "json").stdout)
    assert document["replayed"]["refused"] > document["recorded"]["refused"]
    assert "refused:" in _replay(state, "--synthetic", one).stdout


def test_settings_that_the_recorded_machine_cannot_meet_are_an_error_of_settings(
    state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text((SETTINGS % "true").replace("750m", "cpuset:99"))
    result = _replay(state, "--settings", path)
    assert result.exit_code == Exit.SETTINGS
    assert "reservedResources.cpu" in result.stderr


def test_who_may_not_read_the_state_hears_who_may(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    result = _replay(state)
    assert result.exit_code == Exit.NO
    assert "for root alone: try sudo" in result.stderr


def test_what_is_no_journal_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing of ours")
    wrong, empty, absent = (_replay(path) for path in (tmp_path / "text", tmp_path, tmp_path / "x"))
    codes = wrong.exit_code, empty.exit_code, absent.exit_code
    assert codes == (Exit.USAGE, Exit.NO, Exit.USAGE)
    assert "this is not an SQLite database" in wrong.stderr
    assert "--state-dir" in empty.stderr
    Store(tmp_path, nodes.machine()).close()
    nothing = _replay(tmp_path)
    assert nothing.exit_code == Exit.NO
    assert "no record that a replay can start from" in nothing.stderr

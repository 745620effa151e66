"""`nri-policy history`: events, their containers, and the containers that moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import Struct

from nri_policy.cli import main
from nri_policy.cli.failure import Exit
from nri_policy.cli.node import history as history_command
from nri_policy.engine.event import Created, Event, PodStopped, Resized, Started, Stopped
from nri_policy.workload.pod import Container
from tests.support import nodes, stores
from tests.support.daemon import pod
from tests.unit.cli.test_daemon_commands import beside_a_daemon

EVENING = 1.7e9  # 2023-11-14T22:13:20Z


class Node(Struct):
    """A node that has stopped: on it a batch made room for a database; both ended later."""

    state: Path
    batch: Container
    database: Container


@pytest.fixture
def node(tmp_path: Path) -> Node:
    store, engine = stores.started(tmp_path)
    batch, database = nodes.container(100, 200, name="batch"), nodes.container(13_000)
    events: list[Event] = [
        Created(container=batch),
        Created(container=database),
        Started(container_id=database.id, now=EVENING),
        Created(container=nodes.container(99_000)),
        Stopped(container_id=database.id),
        PodStopped(pod_id=batch.pod.id),
    ]
    for hours, event in enumerate(events):
        stores.commit(store, engine, event, now=EVENING + 3600 * hours)
    store.close()
    return Node(tmp_path, batch, database)


def history(node: Node, *args: str) -> Result:
    runner = CliRunner(env={"COLUMNS": "200", "TZ": "UTC"})
    return runner.invoke(main, ["history", "--journal", str(node.state), *args])


def listed(node: Node, *args: str) -> list[dict[str, Any]]:
    return records("--journal", str(node.state), *args)


def records(*args: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["history", *args, "-o", "json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def hours(node: Node, *args: str) -> list[str]:
    """Return the hours at which something is listed."""
    return [each["time"][11:13] for each in listed(node, *args)]


def test_what_happened_is_listed_with_names_without_what_changed_nothing(node: Node) -> None:
    database = node.database.full_name
    _, *records = listed(node)
    found = [(each["event"], each["container"]) for each in records]
    assert (found[0], found[1]) == (("created", node.batch.full_name), ("created", database))
    pod = node.batch.full_name.rpartition("/")[0]
    assert found[-2:] == [("stopped", database), ("pod-stopped", pod)]
    assert [each["refused"] for each in records] == [False, False, True, False, False]


def test_a_resize_that_is_refused_again_and_again_is_one_row_with_its_last_time(
    tmp_path: Path,
) -> None:
    store, engine = stores.started(tmp_path)
    own = nodes.container(1000, name="own")
    stores.commit(store, engine, Created(container=own), now=EVENING)
    resize = Resized(container_id=own.id, resources=nodes.resources(99_000, 99_000))
    for hour in (1, 2, 3):
        stores.commit(store, engine, resize, now=EVENING + 3600 * hour)
    store.close()
    node = Node(tmp_path, own, own)
    record = listed(node)[-1]
    assert (record["refused"], record["count"], record["time"][11:13]) == (True, 3, "23")
    assert record["last"][11:13] == "01"
    said = " ".join(history(node).output.split())
    assert "resize refused: no pool has room for 99 exclusive CPUs" in said
    assert "(3 times, last at 2023-11-15 01:13:20+00:00)" in said
    assert hours(node, "--since", "2023-11-15T01:00") == ["23"], "it came then, too"
    replayed = CliRunner().invoke(main, ["replay", str(tmp_path)])
    assert replayed.exit_code == 0, replayed.output
    assert "2 more resizes came to the same as one before" in " ".join(replayed.output.split())


def test_what_was_decided_while_pinning_was_off_was_not_set(tmp_path: Path) -> None:
    off = nodes.settings(pinCPU=False, pinMemory=False)
    store, engine = stores.started(tmp_path, settings=off)
    preserved = nodes.container(1000, annotations={"cpu.preserve.resource-policy.nri.io": "true"})
    for each in (nodes.container(2000), preserved, nodes.container(99_000)):
        stores.commit(store, engine, Created(container=each), now=EVENING)
    store.close()
    _, *records = listed(Node(tmp_path, preserved, preserved))
    assert ["(decided, not set)" in each["summary"] for each in records] == [True, False, False]


def test_a_pod_is_told_of_what_others_changed_for_it(node: Node) -> None:
    name = node.batch.pod.name
    changes = [
        (change["container"], change["cause"])
        for each in listed(node, name)
        for change in each["changes"]
    ]
    text = history(node, name).stdout
    for other in ("was placed", "stopped"):
        assert (node.batch.full_name, f"{node.database.full_name} {other}") in changes
    assert f"{name}/batch → " in text
    of_pod = listed(node, name)
    assert of_pod[-1]["event"] == "pod-stopped"
    assert listed(node, f"default/{name}/batch") == of_pod[:-1]
    assert listed(node, f"{name}/batch") == of_pod[:-1]
    latest = "Nothing is recorded of that; the latest record is of 2023-11-15 03:13:20+00:00.\n"
    assert history(node, name, "--since", "1h").stdout == latest


def test_a_name_that_the_journal_does_not_have_is_refused_with_those_that_it_has(
    node: Node,
) -> None:
    name = node.batch.pod.name
    for wrong, hint in ((f"other/{name}", f"did you mean '{name}'?"), ("nobody", f"pods: {name}")):
        result = history(node, wrong)
        assert result.exit_code == Exit.NO
        assert f"the journal names no pod or container '{wrong}'; " in result.stderr
        assert hint in result.stderr


def test_the_journal_of_a_simulated_node_is_beside_its_socket(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRI_POLICY_CONTROL_SOCKET", str(node.state / "control.sock"))
    result = CliRunner().invoke(main, ["history", "-o", "json"])
    assert json.loads(result.stdout) == listed(node)


def elsewhere(control: Path) -> Path:
    """Return a daemon's socket by a name that has no state beside it."""
    link = control.parent / "run" / control.name
    link.parent.mkdir()
    link.symlink_to(control)
    return link


def test_the_daemon_is_asked_where_its_socket_is_named(tmp_path: Path) -> None:
    def check(control: Path) -> None:
        found = records("--control-socket", str(elsewhere(control)))
        assert found == records("--journal", str(tmp_path))
        assert [each["event"] for each in found].count("created") == 2

    beside_a_daemon(tmp_path, check, pod("one", "1"), pod("two", "2"))


def test_the_daemon_is_asked_where_its_state_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As members of its group may: they open the socket, and not the folder."""
    monkeypatch.setattr(history_command, "find_state_dir", lambda: tmp_path / "state")

    socket = tmp_path / "run/control.sock"
    assert history_command._find_journal(socket, named=False) is None, "there is none"
    store, _ = stores.started(tmp_path / "state")
    store.close()
    assert history_command._find_journal(socket, named=False) == tmp_path / "state"
    assert history_command._find_journal(socket, named=True) is None
    monkeypatch.setattr("os.access", lambda *_: False)
    assert history_command._find_journal(socket, named=False) is None


def test_what_the_daemon_has_comes_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.store.history.MAX_PAGE", 2)

    def check(control: Path) -> None:
        found = records("--control-socket", str(elsewhere(control)))
        assert len(found) == 4, "of more than two pages"
        assert found == records("--journal", str(tmp_path))

    beside_a_daemon(tmp_path, check, *(pod(name, "1") for name in ("one", "two", "three")))


def test_without_a_daemon_at_the_socket_that_is_named_it_fails_as_all_others(
    tmp_path: Path,
) -> None:
    result = CliRunner().invoke(main, ["history", "--control-socket", str(tmp_path / "none")])
    assert result.exit_code == Exit.UNREACHABLE
    assert "the daemon cannot be reached" in result.stderr


def test_nothing_is_left_out_where_the_terminal_is_narrow(node: Node) -> None:
    runner = CliRunner(env={"COLUMNS": "60", "TZ": "UTC"})
    result = runner.invoke(main, ["history", "--journal", str(node.state)])
    assert result.stdout.split()[:4] == ["time", "container", "cpuset", "what"]
    assert " →" in result.stdout


def test_whoever_is_asked_about_is_not_lost_among_many_that_changed(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    sharers = [nodes.container(100, 200, name="batch") for _ in range(5)]
    for each in (*sharers, nodes.container(13_000)):
        stores.commit(store, engine, Created(container=each), now=EVENING)
    store.close()
    for each in sharers:
        name = each.pod.name
        *_, last = history(Node(tmp_path, each, each), name).stdout.partition("13 exclusive CPUs")
        assert f"{name}/batch → " in last
        assert "and 2 more" in last


def test_a_time_limits_the_list_from_both_ends(node: Node) -> None:
    assert hours(node, "--since", "2023-11-15T00:13:20+00:00") == ["01", "02", "03"]
    assert hours(node, "--since", "2023-11-14T23:00Z", "--until", "2023-11-15T02:00Z") == [
        "23",
        "01",
    ]
    assert hours(node, "--since", "2h") == []
    assert hours(node, "--until", "00:00")[-1] == "03", "today's"


def test_a_beginning_after_the_end_is_a_wrong_usage(node: Node) -> None:
    result = history(node, "--since", "1h", "--until", "2h")
    assert result.exit_code == Exit.USAGE
    assert "--since is after --until" in result.stderr


def test_a_time_that_is_none_says_what_is(node: Node) -> None:
    result = history(node, "--since", "yesterday")
    assert result.exit_code == Exit.USAGE
    assert "2h (ago), 03:00 (today) or 2026-11-26T03:00" in result.stderr


def test_the_table_has_a_row_for_each_with_the_cpus_and_the_reason(node: Node) -> None:
    lines = [" ".join(line.split()) for line in history(node).stdout.splitlines()]
    assert lines[0] == "time container cpuset what"
    (placed,) = (line for line in lines if node.database.pod.name in line and "placed:" in line)
    assert placed.startswith(f"23:13:20 {node.database.pod.name}/c0 ")
    assert "13 exclusive CPUs on" in placed
    assert " - refused: no pool has room for 99 exclusive CPUs" in " ".join(lines)


def test_a_date_stands_once_above_its_rows(node: Node) -> None:
    recent = history(node, "--since", "2023-11-14").stdout
    first = [line.split()[0] for line in recent.splitlines()]
    dates = [each for each in first if each.startswith("2023-")]
    assert dates == ["2023-11-14", "2023-11-15"]
    assert recent.splitlines()[1].strip() == "2023-11-14 +00:00"
    assert first[first.index("2023-11-15") + 1] == "01:13:20"


def test_the_latest_of_many_can_be_asked_for(node: Node) -> None:
    assert hours(node, "--tail", "2") == ["02", "03"]
    assert hours(node, "--tail", "99") == hours(node)
    assert hours(node, node.database.pod.name, "--tail", "1", "--until", "2023-11-15T00:00Z") == [
        "23"
    ]
    assert history(node, "--tail", "0").exit_code == Exit.USAGE


def test_a_namespace_is_given_as_to_the_other_commands(node: Node) -> None:
    name = node.batch.pod.name
    assert listed(node, "-n", "default", name) == listed(node, name)
    assert listed(node, "-n", "default") == [each for each in listed(node) if each["container"]]
    wrong = history(node, "-n", "shop")
    assert wrong.exit_code == Exit.NO
    assert "the journal names no namespace 'shop'; it names default" in wrong.stderr
    assert "the latest 20 records: --tail 20" in history(node, "-n", "20").stderr

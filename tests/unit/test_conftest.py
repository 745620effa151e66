"""Runs of the tests: the same examples in each, shared out, and at the end what was not tried."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

from tests.conftest import END_TO_END, LONGEST, TOGETHER, Scheduling

ROOT = Path(__file__).parents[2]
HANGS = "the test has not ended within 0.2 s"
TEST = """
from hypothesis import given, settings
from hypothesis import strategies as st
{imports}
drawn = []

@settings(max_examples=200)
@given(st.integers(), st.text())
def test_draw(number: int, text: str) -> None:
    drawn.append((number, text))

def test_print() -> None:
    print("drawn", hash(str(drawn)))
"""


def run(folder: Path, text: str, *arguments: str, fails: bool = False) -> list[str]:
    """Return the lines of a run of one module of tests, which succeeds or *fails*."""
    (folder / "test_module.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", *arguments]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", str(folder)]
    environment = {"PYTHONHASHSEED": "0", "COLUMNS": "150"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == int(fails), ran.stdout
    return ran.stdout.splitlines()


def drawn(folder: Path, *arguments: str, imports: str = "") -> str:
    """Return what a property test is given."""
    lines = run(folder, TEST.format(imports=imports), *arguments)
    return next(line for line in lines if "drawn" in line)


def test_a_run_tries_the_same_examples_whatever_else_is_loaded(tmp_path: Path) -> None:
    first = drawn(tmp_path)
    assert drawn(tmp_path, imports="import nri_policy.daemon.daemon, tools.release") == first


def test_a_fuzzing_run_tries_those_of_its_seed(tmp_path: Path) -> None:
    new = "--hypothesis-profile=new"
    first = drawn(tmp_path, new, "--hypothesis-seed=1")
    assert drawn(tmp_path, new, "--hypothesis-seed=1") == first
    assert drawn(tmp_path, new, "--hypothesis-seed=2") != first


def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path: Path) -> None:
    text = """
import threading
from tests import conftest

conftest.LIMIT = 0.2

def test_hang() -> None:
    try:
        threading.Event().wait()
    finally:
        conftest.LIMIT = 600.0

def test_next() -> None:
    print("the next one ran")
"""
    lines = run(tmp_path, text, fails=True)
    assert "the next one ran" in "\n".join(lines)
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert failed.endswith("test_hang - tests.conftest.HangsError: " + HANGS)


def test_an_example_that_hangs_is_not_tried_again(tmp_path: Path) -> None:
    text = """
import threading
from hypothesis import given
from hypothesis import strategies as st
from tests import conftest

conftest.LIMIT = 0.2
tried = []

@given(st.integers())
def test_hang(number: int) -> None:
    tried.append(number)
    if len(tried) == 1:
        threading.Event().wait()
"""
    lines = run(tmp_path, text, fails=True)
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert failed.endswith("test_hang - tests.conftest.HangsError: " + HANGS)


def test_a_stress_test_may_take_as_long_as_it_was_told(tmp_path: Path) -> None:
    text = """
import os, time
from tests import conftest

conftest.LIMIT = 0.2
os.environ["NRI_POLICY_STORM"] = "500"

def test_storm() -> None:
    time.sleep(0.4)
"""
    assert run(tmp_path, text)[-1].startswith("1 passed")


def test_the_last_lines_say_what_was_not_tried(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_with_a_runtime(number: int) -> None:
    if number:
        pytest.skip("no runtime is built; `make it` builds one")

@pytest.mark.skipif(True, reason="needs root")
def test_as_root() -> None: ...
"""
    *_, first, second, last = run(tmp_path, text)
    assert first == "not tried: 2 tests: no runtime is built; `make it` builds one"
    assert second == "not tried: 1 test: needs root"
    assert last.startswith("1 passed, 3 skipped")


def test_the_tests_of_a_module_and_a_runtime_stay_together() -> None:
    scope = Scheduling.__new__(Scheduling)._split_scope  # which needs no run
    room = scope("tests/e2e/test_rooms.py::test_room[cri-o]")
    assert scope("tests/e2e/test_rooms.py::test_slow[cri-o-daemon restarted meanwhile]") == room
    assert scope("tests/e2e/test_rooms.py::test_room[trixie]") != room
    assert scope("tests/e2e/test_owners.py::test_slow[cri-o]") != room
    assert len({scope(f"{TOGETHER}::test_{name}[{name}]") for name in ("trixie", "cri-o")}) == 1
    node = scope("tests/cluster/test_node.py::test_runs[1.34.4-late]")
    assert scope("tests/cluster/test_node.py::test_ends[1.34.4]") == node
    assert scope("tests/cluster/test_node.py::test_ends[1.36.3]") != node
    assert len({scope(f"tests/unit/test_docs.py::test_{name}") for name in "ab"}) == 1
    for module in ("tests/property/test_engine.py", "tests/loop/test_plays.py"):
        assert len({scope(f"{module}::test_{name}") for name in "ab"}) == 2


def scheduled(tests: list[str]) -> list[set[str]]:
    """Return which tests the processes are given first: one for each CPU, and four more."""
    processes = [Mock(shutting_down=False) for _ in range(len(os.sched_getaffinity(0)) + 4)]
    config = Mock()
    config.getvalue.return_value = ["popen"] * len(processes)
    scheduling = Scheduling(config)
    for process in processes:
        scheduling.add_node(process)
        scheduling.add_node_collection(process, tests)
    scheduling.schedule()
    return [
        {tests[each] for call in process.send_runtest_some.call_args_list for each in call.args[0]}
        for process in processes
    ]


def test_processes_beyond_the_number_of_cpus_begin_with_end_to_end_tests() -> None:
    cpus = len(os.sched_getaffinity(0))
    waiting = [f"tests/e2e/test_rooms.py::test_room[{number}]" for number in range(9)]
    given = scheduled(
        [*waiting, *(f"tests/unit/test_{number}.py::test_it" for number in range(2 * cpus))]
    )
    assert all(tests.isdisjoint(waiting) for tests in given[:cpus])
    assert set.union(*given[cpus:]) == {*waiting[:8]}


def test_the_longest_begin_first_of_their_kind() -> None:
    cpus = len(os.sched_getaffinity(0))
    others = [
        f"tests/{kind}/test_{number}.py::test_{test}"
        for kind in ("unit", "e2e")
        for number in range(2 * cpus + 8)
        for test in "ab"
    ]
    longest = [f"{module}::test_it" for module in LONGEST]
    given = scheduled([*others, *longest])
    waiting = [each for each in longest if each.startswith(END_TO_END)]
    computing = [each for each in longest if each not in waiting]
    assert set.union(*given[:cpus]) >= {*computing[: 2 * cpus]}
    assert set.union(*given[cpus:]) >= {*waiting}


def test_the_longest_are_there() -> None:
    assert [each for each in (*LONGEST, TOGETHER) if not (ROOT / each).is_file()] == []

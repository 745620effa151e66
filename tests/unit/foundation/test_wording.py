"""How messages quote input."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.foundation.wording import did_you_mean, natural, printable, problem_of, quoted


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nb", r"'a\nb'"),
        ("x" * 61, "'" + "x" * 60 + "'… (61 characters)"),
        (True, "true"),
        (None, "null"),
        ([1, 2], "a list (2 entries)"),
        ([1], "a list (1 entry)"),
        ({}, "a map (0 entries)"),
        (1.5, "1.5"),
    ],
)
def test_values_are_quoted_on_one_short_line(value: object, shown: str) -> None:
    assert quoted(value) == shown


def test_a_number_too_long_to_print_is_not_printed() -> None:
    assert quoted(10**9000) == "a number that is too large"


def test_a_near_miss_is_named_whatever_its_case() -> None:
    assert did_you_mean("pincpus", ["pinMemory", "pinCPU"]) == "; did you mean 'pinCPU'?"
    assert did_you_mean("block", ["a.com/rack", "b.com/Block"]) == "; did you mean 'b.com/Block'?"
    assert did_you_mean("a.com/gpu", ["a.com/cpu", "b.com/gpu"]) == "; did you mean 'b.com/gpu'?"
    assert did_you_mean("owm/main", ["guest/main", "own/main"]) == "; did you mean 'own/main'?"
    assert did_you_mean("zebra", ["pinCPU"]) == ""
    assert did_you_mean("x" * 101, ["x" * 100]) == ""


def test_what_commands_a_terminal_or_hides_in_it_is_escaped() -> None:
    assert printable("naïve ▀ 名\n") == "naïve ▀ 名\n"
    commands = "a\x1b[2J\r\x9b\u202e\ud800\x00\x7f\t"
    assert printable(commands) == r"a\x1b[2J\r\x9b\u202e\ud800\x00\x7f\t"
    assert printable(commands, instead="?") == "a?[2J???????"


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["node #10", "node #2/cache #10", "node #2/cache #9", "node", "node #2"]
    assert sorted(names, key=natural) == [
        *("node", "node #2", "node #2/cache #9", "node #2/cache #10", "node #10"),
    ]


def test_an_error_of_the_system_is_said_without_its_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        (tmp_path / "none").read_text()
    assert problem_of(caught.value) == f"{tmp_path}/none: No such file or directory"
    assert problem_of(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert problem_of(OSError("our own words")) == "our own words"
    assert problem_of(ValueError("or another's")) == "or another's"

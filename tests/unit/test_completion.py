"""Words that a shell completes: the table says what the commands would, and says it at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy import completion
from nri_policy.cli import main
from tools import completion as tool

LINES = [
    "nri-policy ",
    "nri-policy re",
    "nri-policy cluster ",
    "nri-policy config ch",
    "nri-policy cluster place --",
    "nri-policy what-if --rep",
    "nri-policy topology -o ",
    "nri-policy topology -o y",
    "nri-policy cluster tree --cluster clu",
    "nri-policy simulate ",
    "nri-policy topology --synthetic ",
]


def test_the_table_is_of_the_commands_that_there_are() -> None:
    assert tool.TABLE.read_text() == tool.table(), "make man writes it anew"


def environment(shell: str, line: str) -> dict[str, str]:
    last = line.rpartition(" ")[2]
    at = last if shell == "fish" else str(line.count(" "))
    return {"_NRI_POLICY_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": at}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("line", LINES)
def test_a_shell_is_told_what_the_commands_would_tell_it(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = environment(shell, line)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    completion.main()
    ours = capsys.readouterr().out
    theirs = CliRunner(env=variables).invoke(main, [], prog_name="nri-policy").stdout
    if shell == "bash":
        assert sorted(ours.split()) == sorted(theirs.split())
    else:  # whose texts of options click cuts in its own way
        assert {line.partition("\t")[0] for line in ours.splitlines() if "," in line} >= {
            line.partition("\t")[0] for line in theirs.splitlines() if line.startswith("plain,")
        }


def test_what_the_table_does_not_say_is_left_to_the_commands() -> None:
    assert completion.complete(["explain"], "w") is None
    assert completion.complete(["what-if", "-f", "'a b"], "") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ex"], "explain\tExplain why a pod's containers are where...\n:4\n"),
        (["explain", "--nod"], "--node\tThe node to ask. [default: the pod's]\n:4\n"),
        (["what-if", "-f", ""], ":0\n"),
        (["explain", "we"], ":4\n"),
    ],
)
def test_kubectl_is_told_what_may_follow_its_plugin(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-nri_policy", *words])
    completion.kubectl()
    assert capsys.readouterr().out == said


def test_no_command_is_imported_for_it() -> None:
    asks = "from nri_policy import completion; completion.main()"
    program = f"import sys; {asks}; print('click' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment("bash", "nri-policy clus"),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,cluster\nFalse\n"

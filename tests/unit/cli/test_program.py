"""The program: how it finds its sub-commands and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from nri_policy.cli import main


def ended(*args: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the program."""
    result = CliRunner().invoke(main, args)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nri-policy: Missing command (see nri-policy --help)\n"),
        (
            ["topolgy"],
            "nri-policy: no command 'topolgy'; did you mean 'topology'? (see nri-policy --help)\n",
        ),
        (
            ["topology", "--bogus"],
            "nri-policy topology: No such option '--bogus' (see nri-policy topology --help)\n",
        ),
    ],
)
def test_a_wrong_usage_is_one_line_on_stderr_and_code_2(args: list[str], message: str) -> None:
    result = CliRunner().invoke(main, args, prog_name="nri-policy")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)


def test_help_names_every_sub_command_on_stdout() -> None:
    code, out, err = ended("--help")
    assert (code, err) == (0, "")
    assert {"run", "topology"} <= {line.split()[0] for line in out.splitlines() if line.strip()}


def test_a_command_can_answer_no(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command
    @click.pass_context
    def no(context: click.Context) -> None:
        context.exit(1)

    monkeypatch.setattr("nri_policy.cli.topology.command", no)
    assert ended("topology") == (1, "", "")


def test_an_interrupt_is_code_130_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nri_policy.cli.topology.command", interrupted)
    code, out, err = ended("topology")
    assert (code, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(("command", "stranger"), [("run", "rich"), ("topology", "grpc")])
def test_a_sub_command_does_not_import_what_others_need(command: str, stranger: str) -> None:
    check = (
        "import sys; from nri_policy.cli import main;"
        f"main(['{command}', '--help'], standalone_mode=False)"
    )
    script = f"try:\n {check}\nexcept SystemExit: print({stranger!r} in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert result.stdout.splitlines()[-1] == b"False"


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_leaves_is_no_news(form: str) -> None:
    program = [sys.executable, "-m", "nri_policy.cli", "topology", "-o", form]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [*program, "--synthetic", "pu:1"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert result.stderr == b""

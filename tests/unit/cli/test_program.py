"""The program: how it finds its sub-commands and how it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from tests.support.daemon import pod

from .test_daemon_commands import beside_a_daemon


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
        (
            ["--bogus", "status"],
            "nri-policy run: No such option '--bogus' (see nri-policy run --help)\n",
        ),
    ],
)
def test_a_wrong_usage_is_one_line_on_stderr_and_code_2(args: list[str], message: str) -> None:
    result = CliRunner().invoke(main, args, prog_name="nri-policy")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)


@pytest.mark.parametrize("group", [[], ["config"], ["cluster"]])
def test_a_list_of_commands_says_of_each_in_full_what_it_does(group: list[str]) -> None:
    _, out, _ = ended(*group, "--help")
    listed = out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_an_option_of_the_programs_own_is_not_one_of_the_daemon(option: str) -> None:
    code, out, err = ended(option)
    assert (code, err) == (0, "")
    assert "Run the daemon" not in out.partition("Commands:")[0]


def test_help_names_every_sub_command_on_stdout() -> None:
    code, out, err = ended("--help")
    assert (code, err) == (0, "")
    assert {"run", "topology"} <= {line.split()[0] for line in out.splitlines() if line.strip()}


def test_a_command_can_answer_no(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command
    @click.pass_context
    def no(context: click.Context) -> None:
        context.exit(1)

    monkeypatch.setattr("nri_policy.cli.node.topology.command", no)
    assert ended("topology") == (1, "", "")


def test_an_interrupt_is_code_130_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nri_policy.cli.node.topology.command", interrupted)
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


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("nri-policy re", "replay"),
        ("nri-policy config ch", "check"),
        ("nri-policy what-if --rep", "--replicas"),
        ("nri-policy topology -o y", "yaml"),
    ],
)
def test_a_shell_completes_commands_options_and_forms(
    words: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wanted in completed(words, monkeypatch)


def completed(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what bash is offered for the last of *words*."""
    monkeypatch.setenv("_NRI_POLICY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    result = CliRunner().invoke(main, [], prog_name="nri-policy")
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.removeprefix("plain,") for line in result.stdout.splitlines() if line]


def test_a_shell_completes_the_names_that_the_daemon_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(control: Path) -> None:
        words = f"nri-policy explain --control-socket {control} "
        pods, containers = ["web", "kube-system/dns"], ["web/main", "kube-system/dns/main"]
        assert completed(words, monkeypatch) == [*pods, *containers]
        assert completed(f"{words}w", monkeypatch) == ["web", "web/main"]
        assert completed(f"{words}kube", monkeypatch)[0] == "kube-system/dns"
        assert completed(f"{words}x", monkeypatch) == []
        assert completed(f"{words}-n kube-system ", monkeypatch) == ["dns", "dns/main"]

    beside_a_daemon(tmp_path, check, pod("web"), pod("dns", namespace="kube-system"))


def test_without_a_daemon_a_shell_is_offered_nothing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"nri-policy explain --control-socket {tmp_path}/none.sock w"
    assert completed(words, monkeypatch) == []
    with socket.socket(socket.AF_UNIX) as deaf:  # it listens, and never answers
        deaf.bind(f"{tmp_path}/deaf.sock")
        deaf.listen()
        monkeypatch.setattr("nri_policy.cli.node.name_completion._PATIENCE", 0.05)
        assert completed(words.replace("none", "deaf"), monkeypatch) == []


def _commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command)
        else:
            yield command


def test_what_is_printed_as_json_is_printed_as_yaml_too() -> None:
    forms = [
        set(parameter.type.choices)
        for command in _commands(main)
        for parameter in command.params
        if isinstance(parameter.type, click.Choice) and "-o" in parameter.opts
    ]
    assert len(forms) > 8
    assert all({"table", "json", "yaml"} <= each for each in forms), forms


def test_a_group_alone_shows_its_usage() -> None:
    code, out, err = ended("config")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")
    assert "  reload  " in err
    assert "see nri-policy" not in err


def test_examples_with_files_of_the_project_say_where_these_are() -> None:
    _, out, _ = ended("cluster", "place", "--help")
    folder = Path(out.rpartition("configs/ is in ")[2].strip())
    assert (folder / "configs" / "groups" / "training.yaml").is_file()
    assert "configs/ is in" not in ended("status", "--help")[1]

"""`demo`: what it plays where there is a terminal, and where there is none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from io import StringIO

from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cli.node.demo import StepFrame
from nri_policy.cli.output import Canvas
from nri_policy.picture.svg import Strip
from tests.support import nodes
from tests.support.patience import HANGS
from tests.support.pictures import holding, made_up

PROGRAM = "from nri_policy.cli import main; main(prog_name='nri-policy')"


def on_a_terminal(*, keys: bytes) -> str:
    """Return what the demo writes to a terminal of somebody who has pressed *keys*."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "demo"]
    environment = {**os.environ, "TERM": "xterm", "LINES": "40", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 1 << 16):
            shown += part
            if b"any key" in part:
                os.write(ours, keys)
    os.close(ours)
    assert process.wait(HANGS) == 0
    return shown.decode()


def test_without_a_terminal_every_step_is_printed_and_what_to_ask_next() -> None:
    done = CliRunner().invoke(main, ["demo"], prog_name="nri-policy")
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("Step ")][-1].startswith(
        "Step 9: "
    )
    *_, run, ask = done.stderr.splitlines()
    assert run.endswith(" demo --stay /tmp/node")
    assert ask.endswith(" explain database --control-socket /tmp/node/control.sock")


def test_on_a_terminal_a_key_shows_the_next_step_and_the_last_one_stays() -> None:
    shown = on_a_terminal(keys=b" ")
    for step in range(1, 10):
        assert f"step {step} of 9" in shown
    left = shown.rpartition("\x1b[?1049l")[2]  # what is written after the whole screen was used
    assert left.count("Step 9: ") == 1
    assert "Step 8: " not in left
    assert "ask such a node" in left


def test_a_step_is_cut_to_the_terminal_and_its_last_line_says_what_a_key_does() -> None:
    held = {f"default/c{n}/main": holding(exclusive=str(n + 1)) for n in range(6)}
    strip = Strip(heading="Step 1", scene=made_up(nodes.engine(nodes.SMALL), held))
    for height in (4, 24, 60):
        out = StringIO()
        console = Canvas(file=out, width=80, height=height, color_system=None, _environ={})
        console.print(StepFrame(strip, "any key: go on"), end="")
        lines = out.getvalue().splitlines()
        assert len(lines) == height
        assert lines[-1].strip() == "any key: go on"
        assert "Step 1" in "".join(lines[:2])

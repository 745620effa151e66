"""What is captured of any of these machines reads as the machine itself does."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from nri_policy.cli import main

OUT = Path("/tmp/out")  # what leaves the guest


def printed(*command: str) -> str:
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_capture_reads_as_the_machine_itself() -> None:
    capture = str(OUT / "capture.tar.xz")
    printed("capture", capture)
    itself = printed("topology", "-o", "json")
    assert printed("topology", "--capture", capture, "-o", "json") == itself

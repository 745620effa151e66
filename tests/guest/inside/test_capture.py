"""What is captured of any of these machines reads as the machine itself does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

OUT = Path("/tmp/out")  # what leaves the guest


def topology(*options: str) -> object:
    command = ["nri-policy", "topology", "-o", "json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_capture_reads_as_the_machine_itself() -> None:
    capture = OUT / "capture.tar.xz"
    subprocess.run(["nri-policy", "capture", str(capture)], check=True)
    assert topology("--capture", str(capture)) == topology()

"""What is captured of any of these machines reads as the machine itself does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def topology(*options: str) -> object:
    command = ["nri-policy", "topology", "-o", "json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_capture_reads_as_the_machine_itself(tmp_path: Path) -> None:
    capture = tmp_path / "guest.tar.xz"
    subprocess.run(["nri-policy", "capture", str(capture)], check=True)
    assert topology("--capture", str(capture)) == topology()

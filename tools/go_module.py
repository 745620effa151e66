"""The source of published Go modules; Go's own settings (GOPROXY, GOFLAGS, …) apply."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def source(module: str, version: str) -> Path:
    """Return the folder with the source of a module, downloaded if it is not there yet.

    Raises CalledProcessError if Go cannot download it, FileNotFoundError without Go.
    """
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])

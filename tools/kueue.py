"""Kueue's kinds for tests on a real API server, of its published Go module; nothing of it is kept.

python3 -m tools.kueue     # prints where they are
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

VERSION = "v0.17.0"
_KINDS = ("workloads", "admissionchecks", "resourceflavors")


def kinds() -> list[Path]:
    """Return the files that define the kinds which the service reads.

    Raises CalledProcessError where the module cannot be had, FileNotFoundError where there is no
    Go.
    """
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"sigs.k8s.io/kueue@{VERSION}"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "config" / "components" / "crd" / "bases"
    return [folder / f"kueue.x-k8s.io_{kind}.yaml" for kind in _KINDS]


if __name__ == "__main__":
    print(*kinds(), sep="\n")

"""Kueue for tests on a real API server, of its published Go module: its kinds, and the program.

The program is built once into a cache that all clones share (see `tools.cache`), by `go install`:
Go's own settings (GOPROXY, GOFLAGS, …) apply.

    python3 -m tools.kueue     # builds it, and prints where it is
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools import cache, go_module

VERSION = "v0.17.0"
_MODULE = "sigs.k8s.io/kueue"


def kinds() -> list[Path]:
    """Return the files that define Kueue's kinds.

    Raises CalledProcessError where the module cannot be had, FileNotFoundError where there is no
    Go.
    """
    folder = go_module.source(_MODULE, VERSION) / "config" / "components" / "crd" / "bases"
    return sorted(folder.glob("*.yaml"))


def is_at_hand() -> bool:
    """Return whether the program is built."""
    return _built().exists()


def program() -> Path:
    """Return the path of the program, built if it is not there yet.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go.
    """
    built = _built()
    return cache.build_once(built, _folder(), lambda: _build(built))


def _folder() -> Path:
    return cache.folder("kueue", VERSION)


def _built() -> Path:
    return _folder() / "bin" / "kueue"


def _build(built: Path) -> None:
    environment = os.environ | {"GOBIN": str(built.parent), "CGO_ENABLED": "0"}
    command = ["go", "install", "-trimpath", "-ldflags", "-s -w", f"{_MODULE}/cmd/kueue@{VERSION}"]
    subprocess.run(command, cwd="/", env=environment, check=True)


if __name__ == "__main__":
    print(program())

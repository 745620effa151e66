"""The topology-aware policy of nri-plugins, to measure beside this one: built of its sources by Go.

It is built once into a cache that all clones share (see `tools.cache`). Go's own settings (GOPROXY,
GOFLAGS, …) apply to what it needs.

    python3 -m tools.nri_plugins [REPOSITORY]    # builds it, and prints where it is

REPOSITORY is any clone of nri-plugins that has the commit; by default the public one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tools import cache

COMMIT = "0705acc824ee3c98f66665a5879bbcafae160c9a"  # 30 commits after v0.14.0
_PUBLIC = "https://github.com/containers/nri-plugins"


def at_hand() -> Path | None:
    """Return the path of the program, if it is built."""
    return _built() if _built().exists() else None


def program(repository: str = _PUBLIC) -> Path:
    """Return the path of the program, built if it is not there yet.

    Raises CalledProcessError where git cannot get the sources or Go cannot build them,
    FileNotFoundError where there is no git or no Go.
    """
    built = _built()
    return cache.build_once(built, _folder(), lambda: _build(repository, built))


def _folder() -> Path:
    return cache.folder("nri-plugins", COMMIT[:12])


def _built() -> Path:
    return _folder() / "nri-resource-policy-topology-aware"


def _build(repository: str, built: Path) -> None:
    with TemporaryDirectory() as sources:
        for command in (
            ["git", "clone", "--quiet", "--no-checkout", repository, "."],
            ["git", "checkout", "--quiet", COMMIT],
            ["go", "build", "-trimpath", "-o", str(built), "./cmd/plugins/topology-aware"],
        ):
            environment = os.environ | {"CGO_ENABLED": "0"}
            subprocess.run(command, cwd=sources, env=environment, check=True)


if __name__ == "__main__":
    print(program(*sys.argv[1:2]))

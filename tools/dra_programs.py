"""What Kubernetes does with resource claims, as programs that tests ask.

`allocator` is kube-scheduler's; `driver` is one on kubeletplugin, which most drivers are made with.
They are built once of the published Go module, into a cache that all clones share (see
`tools.cache`); Go's own settings (GOPROXY, GOFLAGS, …) apply. Nothing of the module is kept in the
repository.

    python3 -m tools.dra_programs     # builds them, and prints where they are
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools import cache
from tools.debs import locked

VERSION = "0.36.3"  # of k8s.io/dynamic-resource-allocation: the one of the newest real node
PROGRAMS = ("allocator", "driver")
_MODULE = f"""\
module dra-program
go 1.26.0
require k8s.io/dynamic-resource-allocation v{VERSION}
"""


def is_built(name: str) -> bool:
    """Return whether a program is built of its source as it is now."""
    folder = cache.folder(f"dra-{name}", VERSION)
    source = folder / "main.go"
    built = (folder / name).exists() and source.exists()
    return built and source.read_text() == _source(name).read_text()


def program(name: str) -> Path:
    """Return the path of a program; build it if it is missing or its source has changed.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go.
    """
    folder = cache.folder(f"dra-{name}", VERSION)
    built = folder / name
    with locked(folder / "lock"):
        if not is_built(name):
            built.unlink(missing_ok=True)
            shutil.copy(_source(name), folder / "main.go")
            (folder / "go.mod").write_text(_MODULE)
            command = ["go", "build", "-mod=mod", "-trimpath", "-o", str(built), "."]
            environment = os.environ | {"CGO_ENABLED": "0"}
            subprocess.run(command, cwd=folder, env=environment, check=True)
    return built


def allocate(clusters: Iterable[Any]) -> list[list[Any]]:
    """Return the scheduler's allocations for the claims of each cluster, None for those without.

    A cluster is `{classes: [...], slices: [...], claims: [...]}`, objects of resource.k8s.io/v1.
    """
    asked = "\n".join(json.dumps(each) for each in clusters)
    command = [program("allocator")]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _source(name: str) -> Path:
    return Path(__file__).with_name(f"dra_{name}.go")


if __name__ == "__main__":
    for each in PROGRAMS:
        print(each, program(each))

"""The allocator of kube-scheduler for resource claims, as a program that tests ask.

It is built once of the published Go module, into a cache that all clones share (see `tools.cache`);
Go's own settings (GOPROXY, GOFLAGS, …) apply. Nothing of it is kept in the repository.

    python3 -m tools.dra_allocator     # builds it, and prints where it is
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
_SOURCE = Path(__file__).with_suffix(".go")
_MODULE = f"""\
module dra-allocator
go 1.26.0
require k8s.io/dynamic-resource-allocation v{VERSION}
"""


def program() -> Path:
    """Return the path of the program, built if it is not there yet or its source is another.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go.
    """
    folder = cache.folder("dra-allocator", VERSION)
    built, source = folder / "allocator", folder / "main.go"
    with locked(folder / "lock"):
        if not built.exists() or source.read_text() != _SOURCE.read_text():
            shutil.copy(_SOURCE, source)
            (folder / "go.mod").write_text(_MODULE)
            command = ["go", "build", "-mod=mod", "-trimpath", "-o", str(built), "."]
            environment = os.environ | {"CGO_ENABLED": "0"}
            subprocess.run(command, cwd=folder, env=environment, check=True)
    return built


def allocate(clusters: Iterable[Any]) -> list[list[Any]]:
    """Return what the scheduler allocates to the claims of each cluster, None where it does not.

    A cluster is `{classes: [...], slices: [...], claims: [...]}`, objects of resource.k8s.io/v1.
    """
    asked = "\n".join(json.dumps(each) for each in clusters)
    done = subprocess.run([program()], input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    print(program())

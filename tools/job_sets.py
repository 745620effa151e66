"""The controllers of JobSet and LeaderWorkerSet for tests on a real API server: kinds and programs.

Each program is built once of its published Go module into a cache that all clones share (see
`tools.cache`): Go's own settings (GOPROXY, GOFLAGS, …) apply.

    python3 -m tools.job_sets     # builds both, and prints where they are
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools import cache, go_module


@dataclass(frozen=True)
class Controller:
    """A controller, and the paths of its parts in its module."""

    name: str
    version: str
    package: str  # of the program, below the module
    kinds: str  # the folder of the definitions of its kinds
    webhooks: str  # the file of their and the pods' webhooks

    def module(self) -> Path:
        """Return the folder of the module's source.

        Raises CalledProcessError if Go cannot download it, FileNotFoundError without Go.
        """
        return go_module.source(f"sigs.k8s.io/{self.name}", self.version)

    def is_built(self) -> bool:
        """Return whether the program is built."""
        return self._built().exists()

    def program(self) -> Path:
        """Return the path of the program, built if it is not there yet; raises as `module`."""
        return cache.build_once(self._built(), self._folder(), self._build)

    def _folder(self) -> Path:
        return cache.folder(self.name, self.version)

    def _built(self) -> Path:
        return self._folder() / "bin" / self.name

    def _build(self) -> None:
        # in the module's own folder, so that its go.sum counts
        built = self._built()
        built.parent.mkdir(exist_ok=True)
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(built), self.package]
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run(command, cwd=self.module(), env=environment, check=True)


JOBSET = Controller(
    name="jobset",
    version="v0.11.1",
    package=".",
    kinds="config/components/crd/bases",
    webhooks="config/components/webhook/manifests.yaml",
)
LWS = Controller(
    name="lws",
    version="v0.8.0",
    package="./cmd",
    kinds="config/crd/bases",
    webhooks="config/webhook/manifests.yaml",
)

if __name__ == "__main__":
    for each in (JOBSET, LWS):
        print(each.program())

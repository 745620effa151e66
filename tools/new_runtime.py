"""A containerd and runc newer than Debian's, without installing them: built from Go modules.

What a container's scheduling class takes (containerd 2.2.1, runc 1.2) is in no suite of Debian yet.
Both are programs of public Go modules, built once into a cache; runc takes a C compiler. Go's own
settings (GOPROXY, GOFLAGS, …) apply. A build may be interrupted: Go keeps what it has compiled. The
variable NRI_POLICY_NEW_RUNTIME names a folder that has the programs already.

    python3 -m tools.new_runtime    # builds all, and prints where they are
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

CONTAINERD, RUNC = "2.2.1", "1.3.3"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "new-runtime" / CONTAINERD
_CONTAINERD, _RUNC = "github.com/containerd/containerd/v2", "github.com/opencontainers/runc"
_STAMP = f"{_CONTAINERD}/version.Version={CONTAINERD}"
# program: its module, package and version, and where it keeps that
_PROGRAMS = {
    "runc": (_RUNC, _RUNC, RUNC, f"main.version={RUNC}"),
    **{
        name: (_CONTAINERD, f"{_CONTAINERD}/cmd/{name}", CONTAINERD, _STAMP)
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
}


def folder() -> Path | None:
    """Return the folder of the programs, None where they are not built."""
    named = os.environ.get("NRI_POLICY_NEW_RUNTIME")
    there = Path(named) if named else CACHE / "bin"
    return there if all((there / name).exists() for name in _PROGRAMS) else None


def main() -> None:
    """Build what is not built yet.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go.
    """
    for name, (module, package, version, stamp) in _PROGRAMS.items():
        built = CACHE / "bin" / name
        if not built.exists():
            source = CACHE / module.rpartition("/")[2]
            source.mkdir(parents=True, exist_ok=True)
            required = f"require {module} v{version}\n"
            (source / "go.mod").write_text(f"module new-runtime\n\ngo 1.24.0\n\n{required}")
            command = ["go", "build", "-mod=mod", "-trimpath", "-ldflags", f"-s -w -X {stamp}"]
            static = {} if name == "runc" else {"CGO_ENABLED": "0"}
            subprocess.run(
                [*command, "-o", str(built), package],
                cwd=source,
                env=os.environ | static,
                check=True,
            )
        print(name, built)


if __name__ == "__main__":
    main()

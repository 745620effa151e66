"""Build the runtimes that Debian does not package from Go modules, without installing them.

Two releases of containerd with a runc, all of which know scheduling classes, and CRI-O: programs of
public Go modules, built once into a cache that all clones share (`tools.cache`). runc and CRI-O
take a C compiler; no library of C beyond libc. Go's own settings (GOPROXY, GOFLAGS, …) apply. A
build may be interrupted: Go keeps what it has compiled. The variables NRI_POLICY_NEW_RUNTIME and
NRI_POLICY_CRIO name folders that have the programs already.

    python3 -m tools.runtimes    # builds all, and prints where they are
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tools import cache, go_module
from tools.debs import locked

CONTAINERD, RUNC, CRIO = "2.2.1", "1.3.3", "1.36.3"
NEWEST_CONTAINERD = "2.4.2"  # tells plugins of pod resizes
COMMAND = "python3 -m tools.runtimes"  # what `main` is called by

_CONTAINERD = "github.com/containerd/containerd/v2"
_RUNC = "github.com/opencontainers/runc"
_CRIO = "github.com/cri-o/cri-o"


@dataclass(frozen=True, slots=True, kw_only=True)
class _GoProgram:
    """One program of a Go module."""

    module: str
    version: str
    package: str
    stamp: str = ""  # where the linker writes the version, and what
    tags: str = ""
    static: bool = False  # without C

    def build(self, target: Path) -> None:
        """Build it as *target*, in a folder that has only its module.

        Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go.
        """
        source = _source(target, self.module, self.version)
        flags = [
            "-mod=mod",
            "-trimpath",
            f"-tags={self.tags}",
            f"-ldflags=-s -w {self.stamp and '-X ' + self.stamp}",
        ]
        command = ["go", "build", *flags, "-o", str(target), self.package]
        environment = os.environ | ({"CGO_ENABLED": "0"} if self.static else {})
        subprocess.run(command, cwd=source, env=environment, check=True)


def _pinns(target: Path) -> None:
    """Build CRI-O's program in C that pins namespaces."""
    files = sorted((go_module.source(_CRIO, f"v{CRIO}") / "pinns" / "src").glob("*.c"))
    subprocess.run(["cc", "-std=c99", "-O2", "-static", "-o", target, *files], check=True)


def _source(target: Path, module: str, version: str) -> Path:
    """Return a folder beside that of *target* with a go.mod that requires the module."""
    source = target.parent.parent / module.removesuffix("/v2").rpartition("/")[2]
    source.mkdir(parents=True, exist_ok=True)
    (source / "go.mod").write_text(f"module built\n\ngo 1.24.0\n\nrequire {module} v{version}\n")
    return source


def _containerd_programs(version: str) -> dict[str, Callable[[Path], None]]:
    programs = {
        name: _GoProgram(
            module=_CONTAINERD,
            version=version,
            package=f"{_CONTAINERD}/cmd/{name}",
            stamp=f"{_CONTAINERD}/version.Version={version}",
            static=True,
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    }
    runc = _GoProgram(module=_RUNC, version=RUNC, package=_RUNC, stamp=f"main.version={RUNC}")
    return {name: each.build for name, each in {**programs, "runc": runc}.items()}


_CRIO_PROGRAMS: dict[str, Callable[[Path], None]] = {
    "pinns": _pinns,
    "crio": _GoProgram(
        module=_CRIO,
        version=CRIO,
        package=f"{_CRIO}/cmd/crio",
        tags="containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs",
    ).build,
}


def containerd(version: str = CONTAINERD) -> Path | None:
    """Return the folder of a containerd and its runc; None if they are not built."""
    named = os.environ.get("NRI_POLICY_NEW_RUNTIME")
    return _at_hand(named, "containerd", version, _containerd_programs(version))


def crio() -> Path | None:
    """Return the folder of CRI-O's programs, None where they are not built."""
    return _at_hand(os.environ.get("NRI_POLICY_CRIO"), "cri-o", CRIO, _CRIO_PROGRAMS)


def _at_hand(named: str | None, name: str, version: str, programs: Iterable[str]) -> Path | None:
    folder = Path(named) if named else cache.folder(name, version) / "bin"
    return folder if all((folder / each).exists() for each in programs) else None


def main() -> None:
    """Build what is not built yet.

    Raises CalledProcessError where Go or C cannot build it, FileNotFoundError where a compiler is
    missing.
    """
    for name, version, programs in (
        ("containerd", CONTAINERD, _containerd_programs(CONTAINERD)),
        ("containerd", NEWEST_CONTAINERD, _containerd_programs(NEWEST_CONTAINERD)),
        ("cri-o", CRIO, _CRIO_PROGRAMS),
    ):
        folder = cache.folder(name, version)
        (folder / "bin").mkdir(exist_ok=True)
        with locked(folder / "lock"):
            for program, build in programs.items():
                target = folder / "bin" / program
                if not target.exists():
                    build(target)
                print(program, target, flush=True)


if __name__ == "__main__":
    main()

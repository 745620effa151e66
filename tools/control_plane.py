"""A real Kubernetes node and its control plane for tests, without installing them.

kube-apiserver, kube-controller-manager, a kube-scheduler that reads NodeResourceTopology, kubelet
and kubectl are programs of public Go modules, built once into a cache that all clones share (see
`tools.cache`); etcd is Debian's. Go's own settings (GOPROXY, GOFLAGS, …) apply. A build may be
interrupted: Go keeps what it has compiled. There are two releases of Kubernetes, or the one that
the variable NRI_POLICY_KUBERNETES names; the scheduler of most is the plain one. The variables
KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER, KUBELET, KUBECTL and ETCD name programs
that are there, of the first release.

    python3 -m tools.control_plane                    # builds all, and prints where they are
    python3 -m tools.control_plane kube-apiserver     # builds one
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tools import cache
from tools.debs import fetch

OLDEST, NEWEST = "1.34.4", "1.36.3"  # of which all parts are published
_NAMED = os.environ.get("NRI_POLICY_KUBERNETES")
RELEASES = (_NAMED,) if _NAMED else (OLDEST, NEWEST)  # a node is tested with each
KUBERNETES = RELEASES[0]  # all else is tested with it
SCHEDULER_PLUGINS = {OLDEST: "0.34.7"}  # release of Kubernetes -> of scheduler-plugins
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_STAGED = re.compile(r"^\s*(\S+) => \./staging/", re.MULTILINE)


def is_at_hand(name: str, release: str = KUBERNETES) -> bool:
    """Return whether a program of the control plane is named, or built; etcd is always at hand."""
    return bool(_named(name, release)) or name == "etcd" or _built(name, release).exists()


def program(name: str, release: str = KUBERNETES) -> Path:
    """Return the path of a program of the control plane, built or fetched if it is not there yet.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go,
    DebsError where etcd cannot be fetched.
    """
    if named := _named(name, release):
        return Path(named)
    if name == "etcd":
        return fetch("etcd-server") / "usr" / "bin" / "etcd"
    built = _built(name, release)
    return cache.build_once(built, _folder(release), lambda: _build(name, release, built))


def _named(name: str, release: str) -> str | None:
    return os.environ.get(name.upper().replace("-", "_")) if release == KUBERNETES else None


def _folder(release: str) -> Path:
    return cache.folder("control-plane", release)


def _built(name: str, release: str) -> Path:
    return _folder(release) / "bin" / name


def _build(name: str, release: str, built: Path) -> None:
    folder = _folder(release)
    (folder / "go.mod").write_text(_module(release))
    # as released, without the place and time of the build
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion=v{release}"
    output = ["-trimpath", "-ldflags", stamp, "-o", str(built)]
    environment = os.environ | {"CGO_ENABLED": "0"}
    package = f"k8s.io/kubernetes/cmd/{name}"
    if name == "kube-scheduler" and release in SCHEDULER_PLUGINS:
        package = "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
    command = ["go", "build", "-mod=mod", *output, package]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def _module(release: str) -> str:
    """Return a go.mod that has the modules, with the published parts of the same version."""
    kubernetes = f"k8s.io/kubernetes@v{release}"
    command = ["go", "mod", "download", kubernetes]
    environment = os.environ | {"GO111MODULE": "on"}
    subprocess.run(command, cwd=_folder(release), env=environment, check=True)
    found = subprocess.run(
        ["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True
    ).stdout.strip()
    theirs = (Path(found) / kubernetes / "go.mod").read_text()
    replaced = [
        f"k8s.io/kubernetes => k8s.io/kubernetes v{release}",
        *(
            f"{path} => {path} v{release.replace('1.', '0.', 1)}"
            for path in _STAGED.findall(theirs)
        ),
    ]
    lines = [
        "module control-plane",
        "go 1.24.0",
        f"require k8s.io/kubernetes v{release}",
        *(
            [f"require sigs.k8s.io/scheduler-plugins v{SCHEDULER_PLUGINS[release]}"]
            if release in SCHEDULER_PLUGINS
            else []
        ),
        *(f"replace {each}" for each in replaced),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Build the programs that are named on the command line, or all, of each release."""
    for release in RELEASES:
        for name in sys.argv[1:] or [*PROGRAMS, "etcd"]:
            print(name, program(name, release))


if __name__ == "__main__":
    main()

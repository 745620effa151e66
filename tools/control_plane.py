"""A real Kubernetes control plane for tests, without installing it: built from Go modules.

kube-apiserver, kube-controller-manager and a kube-scheduler that reads NodeResourceTopology are
programs of public Go modules, built once into a cache; etcd is Debian's. Go's own settings
(GOPROXY, GOFLAGS, …) apply. A build may be interrupted: Go keeps what it has compiled. The
variables KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER and ETCD name programs that are
there already.

    python3 -m tools.control_plane                    # builds all, and prints where they are
    python3 -m tools.control_plane kube-apiserver     # builds one
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tools.debs import fetch

KUBERNETES = "1.34.4"  # of which all parts are published
SCHEDULER_PLUGINS = "0.34.7"  # made for that release
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "control-plane" / KUBERNETES
PACKAGES = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "sigs.k8s.io/scheduler-plugins/cmd/scheduler",
}
_STAGED = re.compile(r"^\s*(\S+) => \./staging/", re.MULTILINE)


def is_at_hand(name: str) -> bool:
    """Return whether a program of the control plane is named, or built; etcd is always at hand."""
    named = name.upper().replace("-", "_") in os.environ
    return named or name == "etcd" or (CACHE / "bin" / name).exists()


def program(name: str) -> Path:
    """Return the path of a program of the control plane, built or fetched if it is not there yet.

    Raises CalledProcessError where Go cannot build it, FileNotFoundError where there is no Go,
    DebsError where etcd cannot be fetched.
    """
    if named := os.environ.get(name.upper().replace("-", "_")):
        return Path(named)
    if name == "etcd":
        return fetch("etcd-server") / "usr" / "bin" / "etcd"
    built = CACHE / "bin" / name
    if not built.exists():
        _build(name, built)
    return built


def _build(name: str, built: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "go.mod").write_text(_module())
    # as the release is built, but for what it says of where it was built
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
    output = ["-trimpath", "-ldflags", stamp, "-o", str(built)]
    environment = os.environ | {"CGO_ENABLED": "0"}
    command = ["go", "build", "-mod=mod", *output, PACKAGES[name]]
    subprocess.run(command, cwd=CACHE, env=environment, check=True)


def _module() -> str:
    """Return a go.mod that has the modules, with the published parts of the same version."""
    kubernetes = f"k8s.io/kubernetes@v{KUBERNETES}"
    command = ["go", "mod", "download", kubernetes]
    subprocess.run(command, cwd=CACHE, env=os.environ | {"GO111MODULE": "on"}, check=True)
    found = subprocess.run(
        ["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True
    ).stdout.strip()
    theirs = (Path(found) / kubernetes / "go.mod").read_text()
    replaced = [
        f"k8s.io/kubernetes => k8s.io/kubernetes v{KUBERNETES}",
        *(
            f"{path} => {path} v{KUBERNETES.replace('1.', '0.', 1)}"
            for path in _STAGED.findall(theirs)
        ),
    ]
    lines = [
        "module control-plane",
        "go 1.24.0",
        f"require k8s.io/kubernetes v{KUBERNETES}",
        f"require sigs.k8s.io/scheduler-plugins v{SCHEDULER_PLUGINS}",
        *(f"replace {each}" for each in replaced),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Build the programs that are named on the command line, or all."""
    for name in sys.argv[1:] or [*PACKAGES, "etcd"]:
        print(name, program(name))


if __name__ == "__main__":
    main()

"""A throwaway Debian system: an overlay on a base that debootstrap made (tools/debian-base).

Needs root. Its processes are this host's, so that they can be waited for and killed like any other;
its mounts are in a namespace of their own and end with the last of its processes.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tools.debs import DebsError

PROJECT = Path(__file__).resolve().parent.parent
CACHE = PROJECT / ".cache" / "fresh-machine"

# Ends with its standard input: no machine outlives the process that made it.
MOUNTS = """\
set -eu
base=$1 folder=$2
shift 2
root=$folder/root
mkdir "$root" "$folder/upper" "$folder/work"
options=lowerdir=$base,upperdir=$folder/upper,workdir=$folder/work
mount -t overlay overlay -o "$options" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for shared; do
    mkdir -p "$root$shared"
    mount --bind "$shared" "$root$shared"
done
echo mounted
exec cat
"""


def base(suite: str) -> Path:
    """Return the folder of the suite's base system, made on first use; change nothing there.

    Raises DebsError where it cannot be made.
    """
    made = subprocess.run(
        [PROJECT / "tools" / "debian-base", suite], check=False, capture_output=True, text=True
    )
    if made.returncode:
        raise DebsError(f"no base system of {suite}: {made.stderr.strip()}")
    return Path(made.stdout.strip())


class Machine:
    """A system of *suite* without network settings, where the folders *shared* are the host's."""

    def __init__(self, suite: str, shared: Sequence[Path]) -> None:
        lower = base(suite)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=CACHE))
        self.root = self._folder / "root"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", MOUNTS, "sh", lower, self._folder, *shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            self.close()
            raise DebsError(f"a machine of {suite} cannot be mounted here, see above")

    def inside(self, *command: str | Path, **variables: str) -> list[str]:
        """Return the command line that runs *command* in the machine, started on the host."""
        settings = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **variables}
        enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "chroot", self.root]
        enter += ["env", "-i", *(f"{name}={value}" for name, value in settings.items())]
        return [str(part) for part in (*enter, *command)]

    def run(self, *command: str | Path, stdin: str = "", **variables: str) -> str:
        """Return what the command prints in the machine; CalledProcessError where it fails."""
        return subprocess.run(
            self.inside(*command, **variables),
            input=stdin,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def close(self) -> None:
        """Remove it."""
        self._holder.communicate()  # which ends its input
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

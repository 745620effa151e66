"""Print the newest Python of this machine, if it is newer than the running one.

python3 -m tools.newest_python     # prints its path, or nothing
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

NAME = re.compile(r"python3\.\d+")
# whole: with all that the project and its environment need; a shim of pyenv may not even run
PROBE = "import ctypes, ensurepip, sqlite3, ssl, sys; print(*sys.version_info[:3])"


def folders() -> list[Path]:
    """Return the folders of Pythons: the PATH, and pyenv's, even if not on the PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [*map(Path, os.get_exec_path()), *sorted(pyenv.glob("versions/*/bin"))]


def newest(places: Iterable[Path]) -> Path | None:
    """Return the newest whole Python in *places* that is newer than this one's minor version."""
    found = {}
    for path in (each for place in places for each in sorted(place.glob("python3.*"))):
        if NAME.fullmatch(path.name) and (version := _version(path)):
            found[version] = path
    best = max(found, default=(0,))
    return found[best] if best[:2] > sys.version_info[:2] else None


def _version(python: Path) -> tuple[int, ...]:
    """Return its version, empty if the installation is broken."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    return () if done.returncode else tuple(map(int, done.stdout.split()))


if __name__ == "__main__":
    print(newest(folders()) or "")

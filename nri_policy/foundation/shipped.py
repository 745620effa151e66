"""Files that come with the program: the examples in configs/ and the pages in docs/."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_PACKAGE = __name__.partition(".")[0]


def shipped() -> Path:
    """Return the folder that has configs/ and docs/: in the package, or the source it runs from."""
    package = Path(str(files(_PACKAGE)))
    installed = package / "share"  # setup.py puts them there
    return installed if installed.is_dir() else package.parent

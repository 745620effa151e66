"""What is handed in to every guest, and how its results come back."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.guest.image import PROJECT, compile_project
from tests.support.wheel import build_wheel

# The end of what runs in a guest: it sends what is in /tmp/out.
SEND = """\
for port in /sys/class/virtio-ports/*; do
    if [ "$(cat $port/name)" = results ]; then tar -c -C /tmp/out . > /dev/${port##*/}; fi
done
"""
# A command as the wheel has it: what is handed in was unpacked, not installed.
COMMAND = """\
mkdir /tmp/out
printf '#!/bin/sh\\nexec python3 -m nri_policy.cli "$@"\\n' > /usr/bin/nri-policy
chmod 755 /usr/bin/nri-policy
"""
_MORE = (
    "tools",
    "tests/e2e",
    "tests/guest",
    "tests/support/manifests.py",
    "tests/support/patience.py",
    "configs/kubernetes/daemonset.yaml",
)


def payload(folder: Path) -> dict[str, Path | str]:
    """Return the project as it is installed, unpacked in the folder, and what its tests need.

    Raises ReleaseError, DebsError or ImageError where it cannot be made.
    """
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(unpacked)
    compile_project(unpacked)
    files: dict[str, Path | str] = {path.name: path for path in unpacked.iterdir()}
    return files | {part: PROJECT / part for part in _MORE}

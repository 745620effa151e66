"""A container image made from a static busybox: an OCI layout in a tar, nothing fetched."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

NAME = "localhost/busybox:e2e"
#: Runs until it is killed; also what the pause container does.
FOREVER = ("/bin/busybox", "sleep", "1000000000")

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(
    busybox: Path,
    target: Path,
    *,
    name: str = NAME,
    entrypoint: Sequence[str] = FOREVER,
    programs: Sequence[str] = (),
) -> None:
    """Write an image of one layer, which holds *busybox* as /bin/busybox, to the tar *target*.

    Also as other *programs*. The folder of its *entrypoint* comes first in PATH.
    """
    files = {f"bin/{each}": busybox.read_bytes() for each in ("busybox", *programs)}
    layer = _tar(files, mode=0o755)
    config = _json(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Entrypoint": list(entrypoint),
                "Env": [f"PATH={Path(entrypoint[0]).parent}:/usr/bin:/bin"],
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    index = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    index["annotations"] = {"io.containerd.image.name": name}
    blobs = {f"blobs/sha256/{_digest(b)[7:]}": b for b in (layer, config, manifest)}
    layout = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [index]}),
    }
    target.write_bytes(_tar(layout | blobs, mode=0o644))


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()

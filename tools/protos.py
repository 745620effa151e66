"""Generate the protobuf modules of `nri_policy/proto` from the files in `proto`.

Takes the folder to write to, as a stand-in for the repository's root; default: that root.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(out: Path) -> None:
    """Write the modules below *out*; raises SystemExit if protoc refuses a file."""
    # The mapped include path is what makes them import each other as `nri_policy.proto.X_pb2`.
    includes = [f"-Inri_policy/proto={ROOT / 'proto'}", f"-I{WELL_KNOWN}"]
    for source in sorted((ROOT / "proto").glob("*.proto")):
        outputs = [f"--python_out={out}", f"--pyi_out={out}"]
        if protoc.main(["protoc", *includes, *outputs, f"nri_policy/proto/{source.name}"]):
            sys.exit(f"protoc refused {source.name}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

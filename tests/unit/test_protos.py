from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_committed_modules_are_what_the_proto_files_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools/protos.py", tmp_path], check=True)

    def modules(root: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in root.glob("nri_policy/proto/*_pb2*.py*")}

    assert modules(tmp_path) == modules(ROOT), "proto/ changed: run `make proto`"

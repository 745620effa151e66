"""Whenever the daemon is killed, the next life finds all that was committed, and nothing torn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from nri_policy.store.database import RecordLink
from nri_policy.store.store import Store
from tests.support import nodes, stores

KILLS = int(os.environ.get("NRI_POLICY_KILLS", "8"))
ROOT = Path(__file__).parents[3]


def test_a_writer_that_is_killed_leaves_a_whole_store(tmp_path: Path) -> None:
    choices = random.Random(1)
    for kill in range(KILLS):
        committed = _killed(tmp_path, kill, after=choices.randrange(400))
        store = Store(tmp_path, nodes.machine())
        assert [entry.name for entry in tmp_path.iterdir()] == ["store"], "it was set aside"
        last = [r for r in stores.records(store.path) if r.link is not RecordLink.BASE][-1]
        assert last.time >= committed, "a decision that was committed is gone"
        assert stores.grants(stores.replayed(store.path)) == dict(store.held.grants)
        store.close()


def _killed(state_dir: Path, seed: int, after: int) -> int:
    """Let a writer live until *after* commits and then be killed; return the last of them."""
    command = [sys.executable, "-m", "tests.support.store_process", str(state_dir), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        committed = 0
        for line in writer.stdout:
            committed = int(line)
            if committed >= after:
                break
        writer.kill()
        rest = writer.stdout.read().split(b"\n")
    return int(rest[-2]) if len(rest) > 1 else committed

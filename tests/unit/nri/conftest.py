from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("NRI_POLICY_SHARED", HERE.parents[3] / "shared")) / "nri-vectors"


class Conversation(NamedTuple):
    """The two directions of one socket, from connect to close."""

    name: str
    from_runtime: bytes
    from_plugin: bytes


def by_hand() -> Conversation:
    sides = {"r2p": b"", "p2r": b""}
    for line in (HERE / "data/lifecycle.hex").read_text().splitlines():
        if not line.startswith("#"):
            side, *tokens = re.findall(r'"[^"]*"|\S+', line)
            for token in tokens:
                text = token.strip('"')
                sides[side] += text.encode() if text != token else bytes.fromhex(token)
    return Conversation("by hand", sides["r2p"], sides["p2r"])


def recorded() -> list[Conversation]:
    return [
        Conversation(
            path.name.removesuffix(".r2p.bin"),
            path.read_bytes(),
            path.with_name(path.name.replace("r2p", "p2r")).read_bytes(),
        )
        for path in sorted(SHARED.glob("*.r2p.bin"))
    ]


@pytest.fixture(params=[by_hand(), *recorded()], ids=lambda conversation: conversation.name)
def conversation(request: pytest.FixtureRequest) -> Conversation:
    found: Conversation = request.param
    return found


@pytest.fixture
def lifecycle() -> Conversation:
    return by_hand()

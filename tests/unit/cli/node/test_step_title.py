"""What a scenario's steps are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nri_policy.cli.node.step_title import title
from nri_policy.simulation.scenario import read_step


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"settings": {}}, "new settings"),
        ({"delete": ["a", "b"]}, "delete a, b"),
        ({"advance": "1m30s"}, "90 s pass"),
        ({"restart": "runtime"}, "the runtime restarts"),
        ({"offline": 4}, "CPU 4 goes offline"),
        ({"online": "4-7"}, "CPUs 4-7 go online"),
        ({"devices": {"example.com/gpu": [{"id": "a"}]}}, "devices: example.com/gpu"),
        ({"disks": {}}, "disks: none"),
        ({"expect": {}}, "what is expected"),
    ],
)
def test_a_step_is_called_by_what_it_does(step: dict[str, Any], text: str) -> None:
    assert title(read_step(step, folder=Path())) == text

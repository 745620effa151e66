"""The object as a file of the node."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from nri_policy.nrt.publisher import PublishError, Trouble
from nri_policy.nrt.topology_file import TopologyFile

OBJECT = {"apiVersion": "topology.node.k8s.io/v1alpha2", "zones": []}


async def test_the_file_is_replaced_as_a_whole_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "nrt.json"
    mask = os.umask(0o077)
    try:
        await TopologyFile(path).put(OBJECT, fresh=True)
        held = path.open()
        await TopologyFile(path).put({**OBJECT, "zones": [{"name": "node-0"}]}, fresh=False)
    finally:
        os.umask(mask)
    with held:
        assert json.load(held) == OBJECT, "who reads the old one reads on"
    assert json.loads(path.read_text())["zones"] == [{"name": "node-0"}]
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["nrt.json"]  # noqa: PTH208 - there is no loop to block here


async def test_a_file_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    for wrong in (tmp_path / "none" / "nrt.json", tmp_path):
        with pytest.raises(PublishError, match=str(wrong)) as error:
            await TopologyFile(wrong).put(OBJECT, fresh=True)
        assert error.value.trouble is Trouble.UNWRITABLE


async def test_nobody_can_lead_the_writer_elsewhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".nrt.json.new").symlink_to(victim)
    with pytest.raises(PublishError):
        await TopologyFile(tmp_path / "nrt.json").put(OBJECT, fresh=True)
    assert victim.read_text() == "mine"


async def test_removing_it_twice_is_no_error(tmp_path: Path) -> None:
    file = TopologyFile(tmp_path / "nrt.json")
    await file.put(OBJECT, fresh=True)
    await file.remove()
    await file.remove()
    assert not os.listdir(tmp_path)  # noqa: PTH208 - as above


async def test_what_is_given_up_half_way_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, begun, going = TopologyFile(tmp_path / "nrt.json"), threading.Event(), threading.Event()
    rename = Path.rename

    def slow(new: Path, target: Path) -> Path:
        begun.set()
        going.wait()
        return rename(new, target)

    monkeypatch.setattr(Path, "rename", slow)
    putting = asyncio.create_task(file.put(OBJECT, fresh=True))
    await asyncio.to_thread(begun.wait)
    putting.cancel()
    removing = asyncio.create_task(file.remove())
    await asyncio.wait({putting})
    going.set()
    await removing
    assert not os.listdir(tmp_path)  # noqa: PTH208 - as above

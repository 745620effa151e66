from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_policy.store.errors import UnsafeStoreError
from nri_policy.store.folder import MAX_ASIDE, secure, set_aside
from nri_policy.store.store import Store
from tests.support import nodes, stores


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_daemon_may_look_into_the_store(tmp_path: Path) -> None:
    state_dir = tmp_path / "new" / "state"
    before = os.umask(0)
    try:
        store, _ = stores.started(state_dir)
    finally:
        os.umask(before)
    files = [*store.path.parent.iterdir()]
    assert {file.name for file in files} == {"state.db", "state.db-wal", "state.db-shm"}
    assert {mode(file) for file in files} == {0o600}
    assert (mode(state_dir), mode(store.path.parent)) == (0o700, 0o700)
    store.close()


def test_what_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    Store(tmp_path, nodes.machine()).close()
    folder = tmp_path / "store"
    folder.chmod(0o755)
    (folder / "state.db").chmod(0o644)
    secure(folder)
    assert (mode(folder), mode(folder / "state.db")) == (0o700, 0o600)


@pytest.mark.parametrize("name", ["store/state.db", "store", "."])
@pytest.mark.parametrize("write", [stat.S_IWGRP, stat.S_IWOTH])
def test_a_store_that_other_users_may_write_is_refused(
    tmp_path: Path, name: str, write: int
) -> None:
    Store(tmp_path, nodes.machine()).close()
    path = tmp_path / name
    path.chmod(mode(path) | write)
    with pytest.raises(UnsafeStoreError, match="its group or others may write to it") as caught:
        Store(tmp_path, nodes.machine())
    assert caught.value.path == path
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["store/state.db", "store/state.db-wal", "store"])
def test_a_symbolic_link_is_refused(tmp_path: Path, name: str) -> None:
    state_dir = tmp_path / "state"
    Store(state_dir, nodes.machine()).close()
    path, elsewhere = state_dir / name, tmp_path / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UnsafeStoreError, match="this is a symbolic link"):
        Store(state_dir, nodes.machine())


def test_a_state_folder_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UnsafeStoreError, match="this is a symbolic link"):
        Store(tmp_path / "link", nodes.machine())


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
@pytest.mark.parametrize("name", ["store/state.db", "store", "."])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, name: str) -> None:
    Store(tmp_path, nodes.machine()).close()
    os.chown(tmp_path / name, 12345, -1)
    with pytest.raises(UnsafeStoreError, match="it belongs to user 12345"):
        Store(tmp_path, nodes.machine())


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_store_that_is_not_a_file_is_set_aside(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    secure(tmp_path / "store")
    (tmp_path / "store" / name).unlink(missing_ok=True)
    make(tmp_path / "store" / name)
    (tmp_path / "store" / name).chmod(0o700)
    Store(tmp_path, nodes.machine()).close()
    assert (tmp_path / "store" / "state.db").is_file()
    assert not (tmp_path / "store.aside-1" / name).is_file()


def test_only_the_latest_that_were_set_aside_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    (tmp_path / "store.aside-old").touch()
    for number in range(MAX_ASIDE + 3):
        secure(folder)
        (folder / "state.db").write_text(str(number))
        set_aside(folder)
    found = {entry.name: entry for entry in tmp_path.iterdir() if entry.is_dir()}
    assert sorted(found) == ["store.aside-4", "store.aside-5", "store.aside-6"]
    assert (found["store.aside-6"] / "state.db").read_text() == "5"


def test_whatever_else_has_such_a_name_is_dropped_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "store.aside-1").write_text("a file")
    (tmp_path / "store.aside-02").symlink_to(elsewhere)
    os.mkfifo(tmp_path / "store.aside-3")
    (tmp_path / "store.aside-9999999999").touch()
    secure(folder)
    set_aside(folder)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "elsewhere",
        "store.aside-10000000000",
        "store.aside-3",
        "store.aside-9999999999",
    ]
    secure(folder)
    set_aside(folder)
    assert {entry.name for entry in tmp_path.glob("store.aside-*")} == {
        *("store.aside-9999999999", "store.aside-10000000000", "store.aside-10000000001")
    }

"""Where a daemon finds and leaves its files, in its own pod and in that of nri-plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.daemon import paths


@pytest.mark.parametrize(
    ("own", "mounted", "peer"),
    [
        (False, True, True),
        (True, True, False),  # of our own manifests, beside the other's
        (False, False, False),  # on a host: the other's folder is only a folder
    ],
)
def test_a_pod_that_mounts_only_the_other_programs_folders_has_its_state_there(
    own: bool, mounted: bool, peer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, other = tmp_path / "nri-policy", tmp_path / "nri-resource-policy"
    if own:
        state.mkdir()
    monkeypatch.setattr(paths, "STATE_DIR", state)
    monkeypatch.setattr(paths, "PEER_STATE", other)
    monkeypatch.setattr(paths, "mount_point", lambda path: path if mounted else Path("/"))
    assert paths.find_state_dir() == (other / "nri-policy" if peer else state)
    containers = paths.PEER_RUN / "nri-policy/containers" if peer else paths.CONTAINERS_DIR
    assert paths.find_containers_dir() == containers

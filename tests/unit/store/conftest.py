"""Stores that a test leaves open are closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.hardware.machine import Machine
from nri_policy.store.store import Store


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Store] = []
    initialise = Store.__init__

    def noted(store: Store, state_dir: Path, machine: Machine) -> None:
        initialise(store, state_dir, machine)
        opened.append(store)

    monkeypatch.setattr(Store, "__init__", noted)
    yield
    for store in opened:
        store.close()

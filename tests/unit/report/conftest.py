"""Machines from files, as the tests of hardware have them."""

from __future__ import annotations

from tests.unit.hardware.conftest import plant, read

__all__ = ["plant", "read"]

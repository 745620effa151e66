"""How long tests wait for what has to come, on however slow a machine: no verdict depends on it."""

from __future__ import annotations

HANGS = 300.0  # seconds; only a test that hangs takes so long

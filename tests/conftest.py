"""What all tests share."""

from __future__ import annotations

import os

import hypothesis

# The gate gives the same verdict on the same code; other runs, and the long modes, look further.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("gate")

"""What all tests share."""

from __future__ import annotations

import os

import hypothesis

# How long an example takes is the machine's business. The gate gives the same verdict on the same
# code; other runs, and the long modes, look further.
hypothesis.settings.register_profile("ours", deadline=None)
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gate" if os.environ.get("CI") else "ours")

"""Data that is kept beside the project: captures of machines, recorded streams, peers' answers."""

from __future__ import annotations

NOT_HERE = "data beside the project is not here; NRI_POLICY_SHARED names the folder that has it"

"""Captured machines against ground truth: hwloc's and lscpu's reading of the same files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cpuset import CPUSet
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import CoreKind, Machine, MemoryKind

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[4] / "shared"))
CAPTURES = sorted((SHARED / "captures").glob("*/*.tar.xz"))

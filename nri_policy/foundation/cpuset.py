"""CPUSet: the one set type for CPU ids and memory node ids, used everywhere.

Ids are 0..8191. The text forms are the kernel's: lists (`0-3,8`; its
Documentation/admin-guide/kernel-parameters.rst) and masks (comma-separated 32-bit hexadecimal
"""

from __future__ import annotations

from nri_policy.native._cpuset import CPUSet

__all__ = ["EMPTY", "CPUSet"]

EMPTY = CPUSet()

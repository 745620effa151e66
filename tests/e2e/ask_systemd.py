"""Has systemd keep CPUs for a scope, with the rights of who runs this: ROOT CGROUP CPUS."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.systemd.scopes import Scopes

root, scope, cpus = sys.argv[1:]
print(asyncio.run(Scopes(Path(root)).allow(scope, CPUSet.parse(cpus))) or "persistent")  # noqa: T201

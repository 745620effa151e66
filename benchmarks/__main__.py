"""Measure: `python -m benchmarks` all that the report has, `python -m benchmarks NAME…` one thing.

`--write` makes docs/performance.md and its picture of the report.
"""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks import report

names = [name for name in sys.argv[1:] if not name.startswith("--")]
for name in names:
    print(f"== {name}")
    import_module(f"benchmarks.{name}").main()
if not names:
    report.main(write="--write" in sys.argv)

"""Run all benchmarks, or those named: `python -m benchmarks [NAME…]`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

names = sys.argv[1:] or sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")
)
for name in names:
    print(f"== {name}")
    import_module(f"benchmarks.{name}").main()

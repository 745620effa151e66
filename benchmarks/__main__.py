"""Measure: `python -m benchmarks` all that the report has, `python -m benchmarks NAME…` one thing.

`--write` writes it all into docs/performance.md, docs/dev, docs/cluster-figures.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks import report

NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem not in {"__main__", "report"} and "\ndef main(" in path.read_text()
)


def main(arguments: list[str]) -> None:
    """Measure what is named, or everything; exits with a message for a name that is none."""
    names = [each for each in arguments if not each.startswith("--")]
    if unknown := [name for name in names if name not in NAMES]:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in names:
        print(f"== {name}")
        import_module(f"benchmarks.{name}").main()
    if not names:
        report.main(write="--write" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run benchmarks: `python -m benchmarks NAME...` those, `python -m benchmarks` the whole report.

`--write` writes the report into docs/performance.md, docs/dev/figures.md and
docs/cluster-figures.md. Some benchmarks have options of their own, which their modules describe.
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
    """Run the named benchmarks, or make the report; exit with a message for an unknown name."""
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

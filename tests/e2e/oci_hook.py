"""Give the container of a bundle a hook that takes two seconds: `runc create`'s arguments follow.

Its first process is there while the hook runs, and waits. Runs on the standard library alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Change the bundle's config.json."""
    config = Path(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    document = json.loads(config.read_bytes())
    hook = {"path": "/bin/sleep", "args": ["sleep", "2"]}
    document.setdefault("hooks", {}).setdefault("createRuntime", []).append(hook)
    config.write_text(json.dumps(document))


if __name__ == "__main__":
    main()

"""The bill of materials of the environment that runs this: a CycloneDX 1.6 document.

Lists all that is installed there but pip. Needs nothing but Python's standard library: a library
for this, cyclonedx, would be in the environment, and so in the list of what is delivered.

    ENVIRONMENT/bin/python tools/sbom.py nri-policy.cdx.json

The time in it is SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

NAME = "nri-policy"
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def main() -> int:
    """Write the document to the file named on the command line."""
    (target,) = sys.argv[1:]
    Path(target).write_text(json.dumps(bill(), indent=1, sort_keys=True) + "\n")
    return 0


def bill() -> dict[str, Any]:
    """Return the document."""
    installed = {normal(each.metadata["Name"]): each for each in distributions()}
    installed.pop("pip", None)
    references = {name: purl(each) for name, each in installed.items()}
    own = component(installed[NAME]) | {"type": "application"}
    others = [component(installed[name]) for name in sorted(installed) if name != NAME]
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, " ".join(sorted(references.values()))).urn,
        "version": 1,
        "metadata": {"timestamp": f"{time:%Y-%m-%dT%H:%M:%SZ}", "component": own},
        "components": others,
        "dependencies": [
            {
                "ref": references[name],
                "dependsOn": sorted(
                    references[other] for other in requirements(each) & installed.keys()
                ),
            }
            for name, each in sorted(installed.items())
        ],
    }


def component(installed: Distribution) -> dict[str, Any]:
    """Return the document's entry for one package."""
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(installed),
        "purl": purl(installed),
        "name": normal(installed.metadata["Name"]),
        "version": installed.version,
    }
    if text := licence(installed):
        described["licenses"] = text
    return described


def licence(installed: Distribution) -> list[dict[str, Any]]:
    """Return the licence: an SPDX expression where the package states one, else its own words."""
    metadata = installed.metadata.json
    if expression := metadata.get("license_expression"):
        return [{"expression": expression}]
    prefix = "License :: "
    classifiers = [
        each.split(" :: ")[-1] for each in metadata.get("classifier", []) if each.startswith(prefix)
    ]
    words = classifiers or str(metadata.get("license", "")).splitlines()[:1]
    return [{"license": {"name": each}} for each in words]


def requirements(installed: Distribution) -> set[str]:
    """Return the names of what the package can need, its extras included."""
    matches = map(REQUIREMENT.match, installed.requires or [])
    return {normal(match[0]) for match in matches if match}


def normal(name: str) -> str:
    """Return the name as the package index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(installed: Distribution) -> str:
    """Return the package's URL, which names it everywhere."""
    return f"pkg:pypi/{normal(installed.metadata['Name'])}@{installed.version}"


if __name__ == "__main__":
    sys.exit(main())

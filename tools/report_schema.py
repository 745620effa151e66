"""Generate docs/documents.schema.json: the JSON schema of every document that is shown.

Takes the folder to write to, as a stand-in for the repository's root; default: that root.
"""

from __future__ import annotations

import json
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any

from nri_policy.cluster.numa.report import NodeFit
from nri_policy.cluster.planning.explanation import GroupExplanation
from nri_policy.cluster.planning.moves import MovePlan
from nri_policy.cluster.planning.preview import TriedGroup
from nri_policy.cluster.report.group_rows import GroupRow
from nri_policy.cluster.report.tree_report import TreeReport
from nri_policy.cluster.simulation.played import SimulationReport
from nri_policy.control.client import Explanations
from nri_policy.doctor.finding import Finding
from nri_policy.report import (
    AuditReport,
    CheckReport,
    Containers,
    JournalPage,
    JournalRecord,
    OccupiedPoolReport,
    ReplayReport,
    ResourceTopology,
    SettingsReport,
    StatusReport,
    TopologyReport,
    WhatIfReport,
    schemas,
)
from nri_policy.simulation.playback import Result
from nri_policy.tuning.protocol import Tunable

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = Path("docs/documents.schema.json")

# by the command that prints it with -o json; the journal is an answer of the control service alone
DOCUMENTS: dict[str, Any] = {
    "audit": AuditReport,
    "cluster explain": GroupExplanation,
    "cluster fit": list[NodeFit],
    "cluster place": list[TriedGroup],
    "cluster plan": MovePlan,
    "cluster simulate": SimulationReport,
    "cluster top": list[GroupRow],
    "cluster tree": TreeReport,
    "config check": CheckReport | tuple[CheckReport, ...],
    "config show": SettingsReport,
    "containers": Containers,
    "doctor": list[Finding],
    "explain": Explanations,
    "history": list[JournalRecord],
    "journal": JournalPage,
    "nrt": ResourceTopology,
    "pools": tuple[OccupiedPoolReport, ...],
    "replay": ReplayReport,
    "simulate": list[Result],
    "status": StatusReport,
    "topology": TopologyReport,
    "tunables": tuple[Tunable, ...],
    "what-if": WhatIfReport,
}


def schema() -> dict[str, Any]:
    """Return the schema of all documents: each by its command, and the parts that they share."""
    roots, parts = schemas([*DOCUMENTS.values()])
    for each in parts.values():
        if "description" in each:  # Pythons before 3.13 leave docstrings of enums indented
            each["description"] = cleandoc(each["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `nri-policy COMMAND -o json` prints",
        "$defs": dict(sorted(parts.items())) | dict(zip(DOCUMENTS, roots, strict=True)),
    }


def generate(out: Path) -> None:
    """Write the schema below *out*."""
    path = out / SCHEMA
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(schema(), indent=1) + "\n")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)

"""Node: the engine behind its one lock, and views of its state for all readers.

Owns the order of events, their observers, and what can be derived from the engine's state. It must
not know protocols, files or how results are shown.
"""

from __future__ import annotations

from nri_policy.engine.grant import Outcome
from nri_policy.engine.state.state import Placed
from nri_policy.node.alignment import describe_misfit, is_remote
from nri_policy.node.company import Companion, Company, list_company
from nri_policy.node.cpu_classes import assign_cpus, uses_cpu_classes
from nri_policy.node.interrupts import list_devices, uses_interrupts, wish_interrupts
from nri_policy.node.node import Node, Observer
from nri_policy.node.statistics import ContainerOutcome, Score, Statistics
from nri_policy.node.view import Holding, NodeView, Sandbox, view_of
from nri_policy.node.what_if import (
    ClaimedParts,
    CPUsAndMems,
    Fit,
    HeldResources,
    HypotheticalContainer,
    HypotheticalPod,
    Misfit,
    NewContainer,
    NewSettings,
    WhatIf,
    WhatIfResult,
)

__all__ = [
    "CPUsAndMems",
    "ClaimedParts",
    "Companion",
    "Company",
    "ContainerOutcome",
    "Fit",
    "HeldResources",
    "Holding",
    "HypotheticalContainer",
    "HypotheticalPod",
    "Misfit",
    "NewContainer",
    "NewSettings",
    "Node",
    "NodeView",
    "Observer",
    "Outcome",
    "Placed",
    "Sandbox",
    "Score",
    "Statistics",
    "WhatIf",
    "WhatIfResult",
    "assign_cpus",
    "describe_misfit",
    "is_remote",
    "list_company",
    "list_devices",
    "uses_cpu_classes",
    "uses_interrupts",
    "view_of",
    "wish_interrupts",
]

"""Documents: what the program shows and the daemon answers, as types.

Rule 1: a document is a frozen Struct, made from values of the engine, and read again by the
command line into the same type. Rule 2: its JSON form is stable: fields may be added, never
renamed; docs/documents.schema.json has all of it. Sets are in the kernel's list format, sizes in
bytes, CPU amounts in milli-CPU.
"""

from __future__ import annotations

from nri_policy.node import Fit, HeldResources, Misfit
from nri_policy.report.amount import cpu_amount, format_cpus
from nri_policy.report.answer import AnswerReport, answer_report, list_neighbours
from nri_policy.report.audit import AuditReport, CompanyReport, DriftReport
from nri_policy.report.classes import (
    ClassesReport,
    ClassItemReport,
    annotation_items,
    class_items,
    classes_report,
)
from nri_policy.report.codec import convert, decode, encode, plain, schemas
from nri_policy.report.container import (
    ContainerReport,
    Containers,
    container_report,
    refusal_report,
)
from nri_policy.report.cpu_classes import CPUClassReport, cpu_class_reports
from nri_policy.report.explanation import (
    CandidateReport,
    ChangeReport,
    ExplanationReport,
    Value,
    explanation_report,
)
from nri_policy.report.explanation_lines import describe_outcome, device_name, opening_lines
from nri_policy.report.hint import HintReport, held_hints
from nri_policy.report.journal import JournalChange, JournalPage, JournalRecord
from nri_policy.report.machine import DeviceReport, MachineReport, NodeReport, machine_report
from nri_policy.report.pool import (
    HugePagesReport,
    OccupiedPoolReport,
    PoolReport,
    TopologyReport,
    occupied_pools,
    pool_reports,
)
from nri_policy.report.rdt import RDTShareReport, rdt_reports
from nri_policy.report.recent_use import NeighbourReport, RecentUseReport
from nri_policy.report.replay import (
    DifferenceReport,
    FateReport,
    ReplayReport,
    TwoFates,
    fate_report,
)
from nri_policy.report.resource_topology import (
    Cost,
    NamedValue,
    ObjectName,
    ResourceTopology,
    Zone,
    ZoneResource,
)
from nri_policy.report.settings import CheckReport, ErrorReport, NodeCapacity, SettingsReport
from nri_policy.report.status import PublicationReport, StatusReport
from nri_policy.report.what_if import (
    NewSettingsReport,
    TriedReport,
    TunableChange,
    TwoHoldings,
    WhatIfReport,
    newcomer_report,
    what_if_report,
)

__all__ = [
    "AnswerReport",
    "AuditReport",
    "CPUClassReport",
    "CandidateReport",
    "ChangeReport",
    "CheckReport",
    "ClassItemReport",
    "ClassesReport",
    "CompanyReport",
    "ContainerReport",
    "Containers",
    "Cost",
    "DeviceReport",
    "DifferenceReport",
    "DriftReport",
    "ErrorReport",
    "ExplanationReport",
    "FateReport",
    "Fit",
    "HeldResources",
    "HintReport",
    "HugePagesReport",
    "JournalChange",
    "JournalPage",
    "JournalRecord",
    "MachineReport",
    "Misfit",
    "NamedValue",
    "NeighbourReport",
    "NewSettingsReport",
    "NodeCapacity",
    "NodeReport",
    "ObjectName",
    "OccupiedPoolReport",
    "PoolReport",
    "PublicationReport",
    "RDTShareReport",
    "RecentUseReport",
    "ReplayReport",
    "ResourceTopology",
    "SettingsReport",
    "StatusReport",
    "TopologyReport",
    "TriedReport",
    "TunableChange",
    "TwoFates",
    "TwoHoldings",
    "Value",
    "WhatIfReport",
    "Zone",
    "ZoneResource",
    "annotation_items",
    "answer_report",
    "class_items",
    "classes_report",
    "container_report",
    "convert",
    "cpu_amount",
    "cpu_class_reports",
    "decode",
    "describe_outcome",
    "device_name",
    "encode",
    "explanation_report",
    "fate_report",
    "format_cpus",
    "held_hints",
    "list_neighbours",
    "machine_report",
    "newcomer_report",
    "occupied_pools",
    "opening_lines",
    "plain",
    "pool_reports",
    "rdt_reports",
    "refusal_report",
    "schemas",
    "what_if_report",
]

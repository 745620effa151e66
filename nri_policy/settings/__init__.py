"""The typed settings: their fields, defaults, loading and checks.

Owns what a document may say. It must not know how a setting takes effect.
"""

from __future__ import annotations

from nri_policy.settings.blockio import BlockIOSettings, DeviceLimits
from nri_policy.settings.cpu_classes import CPUClass
from nri_policy.settings.document import (
    API_VERSION,
    KIND,
    EffectiveSetting,
    Problem,
    SettingsError,
    effective,
    from_spec,
    load,
    load_kind,
    read_section,
    to_spec,
)
from nri_policy.settings.pinning import describe_unset
from nri_policy.settings.rdt import RDT
from nri_policy.settings.rdt import Allocation as RDTAllocation
from nri_policy.settings.rdt import Partition as RDTPartition
from nri_policy.settings.reload_result import ReloadResult
from nri_policy.settings.scheduling import (
    REALTIME,
    IOClass,
    SchedulingClass,
    SchedulingFlag,
    SchedulingPolicy,
)
from nri_policy.settings.schema import (
    Agent,
    Available,
    Instrumentation,
    JournalSettings,
    Log,
    MakeWay,
    Readiness,
    Reserved,
    Settings,
)
from nri_policy.settings.section import Section
from nri_policy.settings.settings_text import Document, SettingsText, documents_of, find_settings
from nri_policy.settings.values import (
    LEVEL_NAMES,
    Address,
    Alignment,
    Audit,
    CPUAmount,
    CPUQuantity,
    ExclusivePartitions,
    ExclusiveQuota,
    FullCores,
    IsolateInterrupts,
    JournalSync,
    Level,
    Listed,
    MakeRoom,
    OnExit,
    Packing,
    PodEvents,
    PodRooms,
    PodSpecs,
    Preserve,
    Priority,
    Unsupported,
    class_name,
    endpoint,
)

__all__ = [
    "API_VERSION",
    "KIND",
    "LEVEL_NAMES",
    "RDT",
    "REALTIME",
    "Address",
    "Agent",
    "Alignment",
    "Audit",
    "Available",
    "BlockIOSettings",
    "CPUAmount",
    "CPUClass",
    "CPUQuantity",
    "DeviceLimits",
    "Document",
    "EffectiveSetting",
    "ExclusivePartitions",
    "ExclusiveQuota",
    "FullCores",
    "IOClass",
    "Instrumentation",
    "IsolateInterrupts",
    "JournalSettings",
    "JournalSync",
    "Level",
    "Listed",
    "Log",
    "MakeRoom",
    "MakeWay",
    "OnExit",
    "Packing",
    "PodEvents",
    "PodRooms",
    "PodSpecs",
    "Preserve",
    "Priority",
    "Problem",
    "RDTAllocation",
    "RDTPartition",
    "Readiness",
    "ReloadResult",
    "Reserved",
    "SchedulingClass",
    "SchedulingFlag",
    "SchedulingPolicy",
    "Section",
    "Settings",
    "SettingsError",
    "SettingsText",
    "Unsupported",
    "class_name",
    "describe_unset",
    "documents_of",
    "effective",
    "endpoint",
    "find_settings",
    "from_spec",
    "load",
    "load_kind",
    "read_section",
    "to_spec",
]

"""The typed configuration: loading, validation, defaults."""

from __future__ import annotations

from nri_policy.settings.document import (
    API_VERSION,
    KIND,
    EffectiveSetting,
    Problem,
    SettingsError,
    effective,
    from_spec,
    load,
    place_of,
    to_spec,
)
from nri_policy.settings.outcome import Reload
from nri_policy.settings.schema import (
    Agent,
    Available,
    Instrumentation,
    Log,
    Reserved,
    Settings,
)
from nri_policy.settings.values import (
    Alignment,
    Audit,
    CPUAmount,
    Endpoint,
    FullCores,
    Level,
    Listed,
    OnExit,
    Packing,
    Priority,
    Quantity,
    Rebalance,
)

__all__ = [
    "API_VERSION",
    "KIND",
    "Agent",
    "Alignment",
    "Audit",
    "Available",
    "CPUAmount",
    "EffectiveSetting",
    "Endpoint",
    "FullCores",
    "Instrumentation",
    "Level",
    "Listed",
    "Log",
    "OnExit",
    "Packing",
    "Priority",
    "Problem",
    "Quantity",
    "Rebalance",
    "Reload",
    "Reserved",
    "Settings",
    "SettingsError",
    "effective",
    "from_spec",
    "load",
    "place_of",
    "to_spec",
]

"""Settings inside of something else: a ConfigMap with the document, values of the Helm chart.

The daemon accepts only the document, and names what it was given instead; commands read all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nri_policy.foundation.wording import some

# Fields of a BalloonsPolicy's spec that a TopologyAwarePolicy does not have.
_BALLOONS = {
    "allocatorTopologyBalancing",
    "balloonTypes",
    "idleCPUClass",
    "loadClasses",
    "preferSpreadOnPhysicalCores",
    "preserve",
    "showContainersInNrt",
}
_NO_BALLOONS = "there are no balloons here"
_REPLACED = "docs/migration.md says what replaces balloons"
_OLD = (
    "these are settings in the old form of nri-plugins and CRI Resource Manager: write a"
    " TopologyAwarePolicy document; docs/migration.md says how the names have changed"
)
_CHART = {"image", "config", "clusterSettings", "nodeRestriction", "podMonitor", "enableNRI"}


def describe_mistake(document: Mapping[str, Any]) -> str | None:
    """Return a text about what *document* is instead of settings; None if unknown."""
    if is_old(document):
        return _OLD
    if is_config_map(document):
        keys = some(texts_of(document)) or "data"
        return f"this is a ConfigMap: save the text of its key {keys} as a file, and use that"
    if is_values(document):
        return (
            "these are values of the Helm chart: write a TopologyAwarePolicy document with the"
            " content of `config` as its spec"
        )
    if document.get("kind") == "BalloonsPolicy":
        return (
            f"these are settings of nri-plugins' balloons policy, and {_NO_BALLOONS}:"
            f" write a TopologyAwarePolicy document; {_REPLACED}"
        )
    if document.get("kind") == "KubeletConfiguration":
        return (
            "this is the kubelet's configuration: write a TopologyAwarePolicy document;"
            " docs/migration.md has a table of what replaces its CPU, memory and topology managers"
        )
    return None


def hint_at(field: str) -> str | None:
    """Return a hint about an unknown field; None if there is none."""
    if field in _BALLOONS:
        return f"it is of nri-plugins' balloons policy, and {_NO_BALLOONS}; {_REPLACED}"
    if field == "topologyManagerPolicy":
        return "it is of the kubelet; alignment is alike, and docs/migration.md maps its values"
    return None


def is_other_object(document: Mapping[str, Any]) -> bool:
    """Return whether *document* is an object unrelated to settings."""
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return False
    ours = version.startswith("config.nri/") or kind in {"ConfigMap", "TopologyAwarePolicy"}
    return not ours and describe_mistake(document) is None


def is_config_map(document: Mapping[str, Any]) -> bool:
    """Return whether *document* is a ConfigMap."""
    return document.get("kind") == "ConfigMap"


def is_old(document: Mapping[str, Any]) -> bool:
    """Return whether *document* has its settings below `policy`, as a map or as a ConfigMap."""
    old = texts_of(document) if is_config_map(document) else document
    return "policy" in old and "kind" not in old


def texts_of(config_map: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts in a ConfigMap, by key."""
    data = config_map.get("data")
    entries = data.items() if isinstance(data, Mapping) else ()
    return {key: text for key, text in entries if isinstance(text, str)}


def is_values(document: Mapping[str, Any]) -> bool:
    """Return whether *document* looks like values of the chart: some of its keys, and no kind."""
    return "kind" not in document and len(_CHART & document.keys()) > ("config" not in document)

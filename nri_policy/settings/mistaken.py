"""Documents that are given by mistake: they hold settings, but are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nri_policy.foundation.wording import some

_CHART = {"image", "config", "clusterSettings", "nodeRestriction", "podMonitor", "turnNRIOn"}


def find_mistake(document: Mapping[str, Any]) -> str | None:
    """Return what *document* is instead of settings, and what to do; None where it is unknown."""
    if document.get("kind") == "ConfigMap":
        data = document.get("data")
        keys = some(data) if isinstance(data, Mapping) and data else "data"
        return f"this is a ConfigMap: save the text of its key {keys} as a file, and use that"
    if "kind" not in document and len(_CHART & document.keys()) > 1:
        return (
            "these are values of the Helm chart: write a TopologyAwarePolicy document with the"
            " content of `config` as its spec"
        )
    return None

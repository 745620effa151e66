"""Label selectors as texts."""

from __future__ import annotations

import pytest

from nri_policy.cluster.objects.label_selector import read_label_selector

LABELS = {"app": "web", "tier": "b", "size": "3", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app=web", True),
        ("app == web", True),
        ("app=db", False),
        ("app=", False),
        ("empty=", True),
        ("app!=web", False),
        ("other!=x", True),
        ("tier in (a, b)", True),
        ("tier in (a,c)", False),
        ("tier notin (a,c)", True),
        ("tier notin (b)", False),
        ("other notin (b)", True),
        ("app", True),
        ("other", False),
        ("!other", True),
        ("! app", False),
        ("size>2", True),
        ("size > 3", False),
        ("size<4", True),
        ("app<4", False),
        ("app=web,tier in (a,b),!canary", True),
        ("app=web,tier in (a,c)", False),
        ("example.com/x!=y", True),
    ],
)
def test_a_selector(text: str, expected: bool) -> None:
    assert read_label_selector(text).selects(LABELS) == expected


@pytest.mark.parametrize(
    "text",
    ["", "app=web,", "=web", "app=a b", "tier in a", "tier in (a;b)", "size>big", "a b", "!"],
)
def test_what_kubernetes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not KEY=VALUE"):
        read_label_selector(text)

"""CRI-O's annotations: their values, and where they count."""

from __future__ import annotations

import pytest

from nri_policy.workload.annotations import AnnotationError, any_ours, is_ours
from nri_policy.workload.crio_annotations import CRIOChoice, read_crio

IRQ, CSTATES, GOVERNOR = (
    "irq-load-balancing.crio.io",
    "cpu-c-states.crio.io",
    "cpu-freq-governor.crio.io",
)


@pytest.mark.parametrize(
    ("text", "latency"), [("disable", "n/a"), ("enable", "0"), ("max_latency:10", "10")]
)
def test_c_states_are_a_limit_of_the_latency(text: str, latency: str) -> None:
    assert read_crio({CSTATES: text}) == CRIOChoice(latency=latency)


@pytest.mark.parametrize(("text", "mask"), [("disable", ("*",)), ("true", ("*",)), ("enable", ())])
def test_interrupts_are_masked_only_where_their_balancing_is_disabled(
    text: str, mask: tuple[str, ...]
) -> None:
    choice = read_crio({IRQ: text}).interrupts
    assert (() if choice is None else choice.mask) == mask


def test_a_pod_without_these_annotations_asks_for_nothing() -> None:
    assert read_crio({"cpu-quota.crio.io": "disable"}) == CRIOChoice()


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        (IRQ, "housekeeping", "served here"),
        (IRQ, "off", "disable or enable"),
        (CSTATES, "max_latency:0", "max_latency:MICROSECONDS"),
        (CSTATES, "max_latency:\u0661", "max_latency:MICROSECONDS"),
        (CSTATES, "max_latency:9999999999", "max_latency:MICROSECONDS"),
        (GOVERNOR, "per formance", "the name of a governor"),
        (GOVERNOR, "", "the name of a governor"),
    ],
)
def test_another_value_is_an_error_that_says_what_is_accepted(
    key: str, text: str, allowed: str
) -> None:
    with pytest.raises(AnnotationError, match=f"^annotation {key}: .*{allowed}"):
        read_crio({key: text})


@pytest.mark.parametrize("key", [IRQ, CSTATES, GOVERNOR])
def test_the_annotations_are_stored_with_their_pod(key: str) -> None:
    assert is_ours(key)
    assert any_ours({key: "disable"})
    assert not is_ours("cpu-quota.crio.io")

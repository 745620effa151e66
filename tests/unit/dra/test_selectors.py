"""The part of CEL by which devices of ours are selected in what-if."""

from __future__ import annotations

import pytest

from nri_policy.dra.selectors import Attributes, selects

DEVICE: Attributes = {"resource.kubernetes.io/numaNode": 1, "placement.nri/coreKind": "performance"}
NODE = 'device.attributes["resource.kubernetes.io"].numaNode'
KIND = "device.attributes['placement.nri'].coreKind"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f"{NODE} == 1", True),
        (f"{NODE}==1&&{KIND}!='mixed'", True),
        (f"\n  {NODE} > 0 &&\n  {NODE} <= 1\n", True),
        (f"{NODE} >= 2", False),
        (f"{NODE} < -1", False),
        (f'{KIND} == "performance" && device.driver == "placement.nri"', True),
        ("device.driver == 'gpu.example.com'", False),
        (f"{KIND} == ''", False),
        ("", None),
        ("true", None),
        (f"{NODE} == 1 || {NODE} == 2", None),
        (f"!({NODE} == 1)", None),
        (f"{NODE} == '1'", None),
        (f"{NODE} == 1.0", None),
        (f"{NODE} == {'9' * 19}", None),
        (f"{NODE} in [1, 2]", None),
        (f"{KIND} == 'a && b'", None),
        ("device.attributes['placement.nri'].unknown == 1", None),
        (f"{NODE} == 2 && true", None),
    ],
)
def test_comparisons_are_evaluated_and_nothing_else(expression: str, expected: bool | None) -> None:
    assert selects(expression, DEVICE) is expected

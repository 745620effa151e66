from __future__ import annotations

import copy
import pickle

import pytest

from nri_policy.foundation.cpuset import EMPTY, CPUSet


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8,10-12", [0, 1, 2, 3, 8, 10, 11, 12]),
        ("0-3\n", [0, 1, 2, 3]),
        ("5\n\0", [5]),
        ("0-31:2/4", [i for i in range(32) if i % 4 < 2]),
        ("0-5:2/4", [0, 1, 4, 5]),
        ("3,1,2,2", [1, 2, 3]),
        ("63-64,8191", [63, 64, 8191]),
        ("007", [7]),
    ],
)
def test_parses_the_kernels_list_format(text: str, ids: list[int]) -> None:
    assert list(CPUSet.parse(text)) == ids


@pytest.mark.parametrize(
    "text",
    ["x", "-1", "1-", "3-1", "1,,2", "0-3:2", "0-3:0/2", "0-3:3/2", "3:1/2", "8192", "1_0", "+1"],
)
def test_bad_text_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ValueError, match="bad CPU list") as caught:
        CPUSet.parse(text)
    assert repr(text) in str(caught.value)


def test_long_bad_text_is_quoted_in_part() -> None:
    with pytest.raises(ValueError, match="bad CPU list") as caught:
        CPUSet.parse("1," * 100_000 + "x")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "ids"), [("0", ""), ("f", "0-3"), ("1,00000003\n", "0-1,32"), ("003ff", "0-9")]
)
def test_reads_masks(text: str, ids: str) -> None:
    assert str(CPUSet.from_mask(text)) == ids


@pytest.mark.parametrize("text", ["", "g", "1,", "123456789", "0x3", "-1", "1," + "0," * 256 + "0"])
def test_bad_masks_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="bad CPU mask"):
        CPUSet.from_mask(text)


def test_ids_outside_the_range_are_refused() -> None:
    for bad in (-1, 8192):
        with pytest.raises(ValueError, match=str(bad)):
            CPUSet([bad])
    with pytest.raises(TypeError):
        CPUSet(["1"])  # type: ignore[list-item]


def test_taking_more_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot take 3"):
        CPUSet([1, 2]).first(3)
    with pytest.raises(ValueError, match="cannot take -1"):
        EMPTY.first(-1)


def test_the_empty_set_has_no_ends() -> None:
    with pytest.raises(ValueError, match="lowest"):
        _ = EMPTY.lowest
    with pytest.raises(ValueError, match="highest"):
        _ = EMPTY.highest


def test_is_a_value() -> None:
    cpus = CPUSet([1, 300, 8191])
    assert pickle.loads(pickle.dumps(cpus)) == cpus
    assert copy.deepcopy(cpus) is cpus
    assert cpus != {1, 300, 8191}
    assert {cpus: 1}[CPUSet.parse("1,300,8191")] == 1
    assert repr(cpus) == "CPUSet('1,300,8191')"
    with pytest.raises(TypeError, match="immutable"):
        cpus.__init__([2])

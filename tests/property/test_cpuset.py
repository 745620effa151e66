"""CPUSet against its twin, Python's frozenset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet

ids = st.one_of(
    st.frozensets(st.integers(0, 8191), max_size=40),
    st.builds(
        lambda low, length: frozenset(range(low, min(low + length, 8192))),
        st.integers(0, 8191),
        st.integers(0, 600),
    ),
)


@given(ids, ids)
def test_algebra_is_that_of_sets(a: frozenset[int], b: frozenset[int]) -> None:
    x, y = CPUSet(a), CPUSet(b)
    for ours, theirs in ((x | y, a | b), (x & y, a & b), (x - y, a - b), (x ^ y, a ^ b)):
        assert set(ours) == theirs
        assert ours == CPUSet(theirs)
        assert hash(ours) == hash(CPUSet(theirs))
    assert (x <= y, x < y, x >= y, x > y, x == y) == (a <= b, a < b, a >= b, a > b, a == b)
    assert x.isdisjoint(y) == a.isdisjoint(b)
    assert CPUSet.union([x, y, x]) == x | y


@given(ids, st.integers(-5, 9000))
def test_questions_are_answered_as_sets_do(a: frozenset[int], probe: int) -> None:
    x = CPUSet(a)
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert list(x) == sorted(a)
    assert (probe in x) == (probe in a)
    if a:
        assert (x.lowest, x.highest) == (min(a), max(a))
    for n in {0, 1, len(a) // 2, len(a)} & set(range(len(a) + 1)):
        assert list(x.first(n)) == sorted(a)[:n]


@given(ids)
def test_texts_round_trip(a: frozenset[int]) -> None:
    x = CPUSet(a)
    assert CPUSet.parse(str(x)) == x
    assert CPUSet.parse(",".join(map(str, a)) + "\n") == x
    value = sum(1 << i for i in a)
    words = [f"{value >> 32 * w & 0xFFFFFFFF:08x}" for w in range(256)]
    assert CPUSet.from_mask(",".join(reversed(words))) == x


@given(st.text(alphabet="0123456789,-:/ \n\0abc", max_size=30))
def test_any_text_is_a_set_or_a_value_error(text: str) -> None:
    try:
        parsed = CPUSet.parse(text)
    except ValueError as error:
        assert "bad CPU list" in str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert CPUSet.parse(str(parsed)) == parsed

"""What differs between a recorded decision and its replay, part by part, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from nri_policy.engine.explanation import Explanation
from nri_policy.engine.grant import Moved
from nri_policy.pools.tree import Pool

_POOLS = {"pool", "home"}  # fields that have a pool's id


def list_differences(
    part: str, before: object, after: object, pools: Sequence[Pool]
) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of *part* that differ, each with what it was *before* and is *after*."""
    if before == after:
        return
    if type(before) is type(after) and isinstance(before, Struct | Mapping):
        one, other = _entries(before, pools), _entries(after, pools)
        for each in {**one, **other}:
            yield from list_differences(f"{part}: {each}", one.get(each), other.get(each), pools)
    else:
        yield part, describe(before, pools), describe(after, pools)


def describe(value: object, pools: Sequence[Pool]) -> str:
    """Return a value of a decision in words."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Moved():
            return f"{value.container_id} to {pools[value.after].name}"
        case Struct() | Mapping():
            entries = _entries(value, pools).items()
            words = [f"{name} {describe(each, pools)}" for name, each in entries if each]
            return ", ".join(words) or "none"
        case tuple() | list():
            return "; ".join(describe(each, pools) for each in value) or "none"
        case _:
            return "none" if value is None else str(value) or "none"


def _entries(value: object, pools: Sequence[Pool]) -> Mapping[str, object]:
    """Return the fields or entries of *value* by name; an explanation has only what is compared."""
    if isinstance(value, Explanation):
        table = value.table
        rows = {} if table is None else {each.name: table.row(each.id) for each in pools}
        found = {"kind": value.kind, "pool": value.pool_name, "notes": value.notes}
        return {**found, "criteria": rows}
    if isinstance(value, Mapping):
        return value
    assert isinstance(value, Struct)
    return {
        name.replace("_", " "): pools[each].name
        if name in _POOLS and isinstance(each, int)
        else each
        for name, each in asdict(value).items()
    }

"""Random protobuf messages: any field, with texts that often mean something."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DOMAIN = "resource-policy.nri.io"
_ODD = ["", "\0", "\n", "a/b", "../../etc/passwd", "/", "\x1b[31m", "\u202e", "ä", "x" * 300, "-1"]
odd = st.sampled_from(_ODD) | st.text(st.characters(codec="utf-8"), max_size=12)
_IDS = st.sampled_from(["one", "two", "three"])
_CPUS = st.sampled_from(["0", "0-3", "4-7,9", "0-8191", "1-", "9-3", "0-99999999999", "1,1"])
_KEYS = st.builds(
    "{}.{}{}".format,
    st.sampled_from(
        [
            *("prefer-isolated-cpus", "prefer-shared-cpus", "prefer-reserved-cpus", "cold-start"),
            *("cpu.preserve", "memory.preserve", "hide-hyperthreads", "memory-type", "static-cpus"),
            *("topologyhints", "strict.topologyhints", "pick-resources-by-hints", "unknown"),
        ]
    ),
    st.just(DOMAIN),
    st.sampled_from(["", "/pod", "/container.one", "/container.two", "/x"]),
) | st.sampled_from(
    [f"{DOMAIN}/affinity", f"{DOMAIN}/anti-affinity", "noderesource.dev/resources", "a", ""]
)
_WISHES = st.sampled_from(
    [
        *(
            "true",
            "false",
            "dram,pmem",
            "duration: 5s",
            "one: [two]",
            "{one: true}",
            "[[[",
            "&a *a",
        ),
        '{"containers":{"one":{"requests":{"cpu":"2","memory":"1Gi"}}}}',
        "one:\n- match: {key: name, operator: Matches, values: ['*']}\n  weight: 9",
    ]
)
_TEXTS = {
    "id": _IDS,
    "pod_sandbox_id": _IDS,
    "container_id": _IDS,
    "name": _IDS,
    "cpus": _CPUS,
    "mems": _CPUS,
    "cgroup_parent": st.sampled_from(["/kubepods/besteffort", "/kubepods/burstable", "/kubepods"]),
    "namespace": st.sampled_from(["default", "kube-system"]),
    "type": st.sampled_from(["b", "c", "a"]),
}
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_SMALL = (0, 1, 2, 3, 100, 102, 1024, 2048, 3072, 100_000, 200_000, 1 << 30)


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 6) -> Message:
    """Draw a message of the kind of that descriptor."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries, of = getattr(message, field.name), field.message_type.fields_by_name["value"]
            for key in draw(st.lists(_KEYS | odd, max_size=3)):
                if of.message_type is None:
                    entries[key] = draw(_WISHES | odd)
                else:
                    entries[key].CopyFrom(draw(_value(of, depth)))
        elif field.is_repeated:
            values = draw(st.lists(_value(field, depth), max_size=3))
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_value(field, depth)))
        else:
            setattr(message, field.name, draw(_value(field, depth)))
    return message


def _value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[object]:
    if field.message_type is not None:
        if depth == 0:
            return st.just(GetMessageClass(field.message_type)())
        return messages(field.message_type, depth - 1)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=20)
        return _TEXTS.get(field.name, odd) | odd
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    low, high = _BOUNDS[field.cpp_type]
    return st.sampled_from(_SMALL) | st.integers(low, high)

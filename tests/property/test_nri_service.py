from __future__ import annotations

import asyncio
import math

from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.clock import Clock
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.service import METHODS, PluginService
from nri_policy.proto import nri_pb2 as pb
from tests.unit.nri.peer import RecordingPlugin

DECLARED = pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
methods = st.sampled_from([*METHODS, *DECLARED]) | st.text(max_size=8)

# Bytes that are often protobuf: fields of small numbers that hold numbers, text or more fields.
leaves = st.binary(max_size=8)
fields = st.recursive(
    leaves,
    lambda inner: st.lists(
        st.builds(
            lambda number, body: bytes([number << 3 | 2, len(body) & 0x7F]) + body,
            st.integers(1, 15),
            inner,
        )
        | st.builds(
            lambda number, value: bytes([number << 3, value]),
            st.integers(1, 15),
            st.integers(0, 127),
        ),
        max_size=4,
    ).map(b"".join),
    max_leaves=8,
)


@given(requests=st.lists(st.tuples(methods, fields), max_size=8))
def test_any_request_is_answered_or_refused_and_never_with_a_bug(
    requests: list[tuple[str, bytes]],
) -> None:
    async def serve() -> list[int]:
        service, refusals = PluginService(RecordingPlugin(), asyncio.Lock(), Clock()), []
        for method, payload in requests:
            try:
                answer = await service.answer(method, payload, budget=math.inf)
                GetMessageClass(DECLARED[method].output_type).FromString(answer)
            except CallRefused as refusal:
                refusals.append(refusal.code)
        return refusals

    assert {Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}.issuperset(asyncio.run(serve()))

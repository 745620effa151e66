from collections.abc import Mapping
from typing import Any

from msgspec import Raw

class Fields:
    def __init__(self, *trees: Mapping[str, Any]) -> None: ...
    def texts_of(self, text: Raw) -> tuple[bytes, ...] | None: ...

def items_of(text: bytes | memoryview) -> tuple[list[tuple[str, int, int]], bool] | None: ...

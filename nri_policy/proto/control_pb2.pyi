from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Document(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reload(_message.Message):
    __slots__ = ("accepted", "origin", "reason", "time")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    origin: str
    reason: str
    time: float
    def __init__(self, accepted: _Optional[bool] = ..., origin: _Optional[str] = ..., reason: _Optional[str] = ..., time: _Optional[float] = ...) -> None: ...

class PoolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ContainersRequest(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: bool
    def __init__(self, usage: _Optional[bool] = ...) -> None: ...

class MachineRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JournalRequest(_message.Message):
    __slots__ = ("after", "limit", "container")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    container: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., container: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("manifests", "replicas", "most", "settings")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    manifests: str
    replicas: int
    most: bool
    settings: str
    def __init__(self, manifests: _Optional[str] = ..., replicas: _Optional[int] = ..., most: _Optional[bool] = ..., settings: _Optional[str] = ...) -> None: ...

class TopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Decision(_message.Message):
    __slots__ = ("event", "container", "outcome", "summary", "pool", "cpus", "mems", "changes", "released", "warnings")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    event: str
    container: str
    outcome: str
    summary: str
    pool: str
    cpus: str
    mems: str
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    released: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, event: _Optional[str] = ..., container: _Optional[str] = ..., outcome: _Optional[str] = ..., summary: _Optional[str] = ..., pool: _Optional[str] = ..., cpus: _Optional[str] = ..., mems: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., released: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("container", "cpus", "mems", "cause")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    container: str
    cpus: str
    mems: str
    cause: str
    def __init__(self, container: _Optional[str] = ..., cpus: _Optional[str] = ..., mems: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

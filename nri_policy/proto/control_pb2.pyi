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

class StatusResponse(_message.Message):
    __slots__ = ("version", "synchronized", "runtime", "pools", "containers", "refused", "online_cpus", "reserved_cpus", "isolated_cpus", "exclusive_cpus", "shared_cpus", "notices", "publications", "latest_reload", "lacking_classes", "unsupported_annotations")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZED_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ONLINE_CPUS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_CPUS_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_CPUS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_CPUS_FIELD_NUMBER: _ClassVar[int]
    SHARED_CPUS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    LATEST_RELOAD_FIELD_NUMBER: _ClassVar[int]
    LACKING_CLASSES_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    version: str
    synchronized: bool
    runtime: str
    pools: int
    containers: int
    refused: int
    online_cpus: str
    reserved_cpus: str
    isolated_cpus: str
    exclusive_cpus: str
    shared_cpus: str
    notices: _containers.RepeatedScalarFieldContainer[str]
    publications: _containers.RepeatedCompositeFieldContainer[Publication]
    latest_reload: Reload
    lacking_classes: int
    unsupported_annotations: int
    def __init__(self, version: _Optional[str] = ..., synchronized: _Optional[bool] = ..., runtime: _Optional[str] = ..., pools: _Optional[int] = ..., containers: _Optional[int] = ..., refused: _Optional[int] = ..., online_cpus: _Optional[str] = ..., reserved_cpus: _Optional[str] = ..., isolated_cpus: _Optional[str] = ..., exclusive_cpus: _Optional[str] = ..., shared_cpus: _Optional[str] = ..., notices: _Optional[_Iterable[str]] = ..., publications: _Optional[_Iterable[_Union[Publication, _Mapping]]] = ..., latest_reload: _Optional[_Union[Reload, _Mapping]] = ..., lacking_classes: _Optional[int] = ..., unsupported_annotations: _Optional[int] = ...) -> None: ...

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

class Publication(_message.Message):
    __slots__ = ("to", "phase", "version", "generation", "written_at", "written", "unchanged", "failed", "trouble", "error", "rivals")
    TO_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RIVALS_FIELD_NUMBER: _ClassVar[int]
    to: str
    phase: str
    version: str
    generation: int
    written_at: float
    written: int
    unchanged: int
    failed: int
    trouble: str
    error: str
    rivals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, to: _Optional[str] = ..., phase: _Optional[str] = ..., version: _Optional[str] = ..., generation: _Optional[int] = ..., written_at: _Optional[float] = ..., written: _Optional[int] = ..., unchanged: _Optional[int] = ..., failed: _Optional[int] = ..., trouble: _Optional[str] = ..., error: _Optional[str] = ..., rivals: _Optional[_Iterable[str]] = ...) -> None: ...

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

"""What Kubernetes objects of all kinds have alike: metadata, and conditions in their status."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, join

Key = tuple[str, str]  # namespace and name


class Namespaced(Struct, frozen=True):
    """What is known of an object of a namespace."""

    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def full_name(self) -> str:
        """Namespace and name as people write them."""
        return f"{self.namespace}/{self.name}"


class OwnerReference(Struct, frozen=True, rename="camel", gc=False):
    """The controller that owns an object."""

    kind: str
    name: str
    uid: str = ""
    controller: bool = False
    api_version: str = ""


class ObjectIdentity(Struct, rename="camel", gc=False):
    """The identity and the age of an object, from its `metadata`."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    def key(self, path: str, what: str) -> Key:
        """Return namespace and name of an object at *path*.

        Raises DocumentError for an object without a name; *what* is its kind.
        """
        if not self.name:
            raise DocumentError(join(path, "metadata.name"), f"{what} has a name")
        return self.namespace or "default", self.name


class ObjectMeta(ObjectIdentity, rename="camel", gc=False):
    """The `metadata` of an object, or of a pod template, with what it is marked with."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Identified(Struct):
    """An object of any kind, of which only the identity is read."""

    metadata: ObjectIdentity


class StatusCondition(Struct, gc=False):
    """One of the `conditions` in the `status` of an object."""

    type: str
    status: str

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return self.status == "True"

"""Whether a pod may run on a node by taints, node selector and node affinity: Kubernetes' rules.

A term of node affinity without expressions and fields matches no node; a preferred one matches all.
`Gt` and `Lt` compare integers. What Kubernetes' API server refuses is refused by `check_affinity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from nri_policy.cluster.objects.document import DocumentError, each_at, join
from nri_policy.cluster.objects.node import ClusterNode, Taint
from nri_policy.foundation.wording import quoted

_REPELLING = ("NoSchedule", "NoExecute")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class Toleration(Struct, frozen=True, rename="camel"):
    """A toleration; an empty key with `Exists` tolerates all, an empty effect every effect."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Return whether it tolerates *taint*, for however long."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        if self.operator in (None, "", "Equal"):
            return bool(self.key) and (self.value or "") == (taint.value or "")
        return False


class LabelRequirement(Struct, frozen=True):
    """One requirement on a label, or on the node's name as the field `metadata.name`."""

    key: str
    operator: str
    values: list[str] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether *labels* satisfy it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in (self.values or ())
            case "NotIn":
                return value is None or value not in (self.values or ())
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                bound, own = _integer((self.values or [""])[0]), _integer(value)
                if bound is None or own is None:
                    return False
                return own > bound if self.operator == "Gt" else own < bound


class Term(Struct, frozen=True, rename="camel"):
    """Requirements that hold together."""

    match_expressions: list[LabelRequirement] | None = None
    match_fields: list[LabelRequirement] | None = None

    @property
    def empty(self) -> bool:
        """Whether it requires nothing."""
        return not self.match_expressions and not self.match_fields

    def matches(self, node: ClusterNode) -> bool:
        """Return whether *node* satisfies all of it."""
        name = {"metadata.name": node.name}
        return all(each.matches(node.labels) for each in self.match_expressions or ()) and all(
            each.matches(name) for each in self.match_fields or ()
        )


class PreferredTerm(Struct, frozen=True):
    """A term with the weight that it adds to a node's score."""

    weight: int
    preference: Term


class _Required(Struct, frozen=True):
    nodeSelectorTerms: list[Term]  # noqa: N815 - as documents have it


class NodeAffinity(Struct, frozen=True):
    """Node affinity."""

    required: _Required | None = field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredTerm] | None = field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )

    def requires(self, node: ClusterNode) -> bool:
        """Return whether the required part admits *node*."""
        if self.required is None:
            return True
        terms = self.required.nodeSelectorTerms
        return any(not each.empty and each.matches(node) for each in terms)

    def score(self, node: ClusterNode) -> int:
        """Return the sum of the weights of the preferred terms that match *node*."""
        return sum(each.weight for each in self.preferred or () if each.preference.matches(node))


def find_untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first taint that keeps new pods away and that none of *tolerations* tolerates."""
    for taint in taints:
        if taint.effect in _REPELLING and not any(each.tolerates(taint) for each in tolerations):
            return taint
    return None


def tolerate(taint: Taint) -> Toleration:
    """Return the toleration of just this taint."""
    operator = "Equal" if taint.value else "Exists"
    return Toleration(taint.key, operator, taint.value or None, taint.effect)


def is_selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Return whether *labels* have all of a node selector."""
    return all(labels.get(key) == value for key, value in selector.items())


def check_affinity(affinity: NodeAffinity, path: str) -> None:
    """Raise DocumentError for what the API server would refuse."""
    required = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.required.nodeSelectorTerms if affinity.required else []
    for term, place in each_at(terms, join(path, required)):
        _check_term(term, place)
    for each, place in each_at(affinity.preferred, join(path, preferred)):
        if not 1 <= each.weight <= 100:
            raise DocumentError(join(place, "weight"), f"{each.weight} is not from 1 to 100")
        _check_term(each.preference, join(place, "preference"))


def _check_term(term: Term, path: str) -> None:
    for name, expressions in (
        ("matchExpressions", term.match_expressions),
        ("matchFields", term.match_fields),
    ):
        for each, place in each_at(expressions, join(path, name)):
            if each.operator not in _OPERATORS:
                known = ", ".join(_OPERATORS)
                raise DocumentError(
                    join(place, "operator"), f"{quoted(each.operator)} is not one of {known}"
                )
            values = each.values or []
            if each.operator in ("In", "NotIn") and not values:
                raise DocumentError(join(place, "values"), f"{each.operator} needs values")
            if each.operator in ("Gt", "Lt") and (len(values) != 1 or _integer(values[0]) is None):
                raise DocumentError(join(place, "values"), f"{each.operator} needs one integer")


def _integer(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-").removeprefix("+")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 20 else None

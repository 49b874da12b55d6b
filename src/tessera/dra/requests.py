"""What a claim asks for, with its classes looked up and its amounts parsed.

Every refusal names claim, field, value and rule. A request of a form that is not known here is refused, not guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import msgspec

from tessera.dra.claims import (
    ALL,
    EXACT_COUNT,
    ClaimSpec,
    Constraint,
    DeviceClass,
    DeviceQuery,
    DeviceRequest,
    Selector,
    Toleration,
)
from tessera.dra.limits import CLAIM_ENTRIES, CLAIM_EXPRESSIONS
from tessera.kube.quantity import parse_quantity, quantity_text
from tessera.text import one_line

#: Guard of our classes where the server keeps no taints of devices (see ``driver_objects``): false for all devices.
#: Only who places by this module leaves it out.
GUARD = "false && 'tessera.dev/placed-by' != ''"


class ClaimRefused(ValueError):  # noqa: N818 - says what happened to the claim
    """A claim that cannot be read; the text says why."""


class DeviceDemand(msgspec.Struct, frozen=True, kw_only=True):
    """One way to fulfil a request.

    Attributes:
        name: the request's name, or ``request/alternative``; results carry it.
        request: the request's name.
        class_name: the class.
        selectors: place and expression of each selector, those of the class first.
        count: devices; 0 for all that match.
        admin: takes nothing from others.
        tolerations: taints that do not matter.
        amounts: wanted of each device, by the name that the claim writes.
    """

    name: str
    request: str
    class_name: str
    selectors: tuple[tuple[str, str], ...] = ()
    count: int = 1
    admin: bool = False
    tolerations: tuple[Toleration, ...] = ()
    amounts: Mapping[str, Decimal] = {}


class AttributeRule(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of some requests have the same value of an attribute, or each has another.

    Attributes:
        attribute: its qualified name.
        distinct: each device has another value.
        requests: names of requests or alternatives; empty for all.
    """

    attribute: str
    distinct: bool = False
    requests: frozenset[str] = frozenset()

    def concerns(self, demand: DeviceDemand) -> bool:
        """True if devices of the request count."""
        return not self.requests or demand.request in self.requests or demand.name in self.requests


class ClaimDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A claim.

    Attributes:
        name: ``claim namespace/name``, for messages.
        requests: for each request its alternatives, the preferred one first.
        rules: constraints.
    """

    name: str
    requests: tuple[tuple[DeviceDemand, ...], ...]
    rules: tuple[AttributeRule, ...] = ()


def read_demand(name: str, spec: ClaimSpec, classes: Mapping[str, DeviceClass]) -> ClaimDemand:
    """Returns what a claim asks for.

    Args:
        name: ``claim namespace/name``, for messages.
        spec: of the claim, or of the template.
        classes: the cluster's classes, by name.

    Raises:
        ClaimRefused: a class is missing, or a field has a form or value that is not known here.
    """
    reader = _Reader(name, classes)
    requests = tuple(tuple(reader.alternatives(index, each)) for index, each in enumerate(spec.devices.requests))
    least = sum(min(each.count or 1 for each in alternatives) for alternatives in requests)
    if least > CLAIM_ENTRIES:
        raise ClaimRefused(f"{name}: spec.devices.requests ask for {least:,} devices; a claim has {int(CLAIM_ENTRIES)}")
    texts = [text for alternatives in requests for each in alternatives for _, text in each.selectors]
    if sum(map(len, texts)) > CLAIM_EXPRESSIONS:
        raise ClaimRefused(f"{name}: its selectors, with those of its classes, have {CLAIM_EXPRESSIONS}")
    rules = tuple(reader.rule(index, each) for index, each in enumerate(spec.devices.constraints))
    return ClaimDemand(name=name, requests=requests, rules=rules)


class _Reader:
    def __init__(self, name: str, classes: Mapping[str, DeviceClass]) -> None:
        self._name = name
        self._classes = classes

    def _refuse(self, field: str, text: str) -> ClaimRefused:
        return ClaimRefused(f"{self._name}: {field} {text}")

    def alternatives(self, index: int, request: DeviceRequest) -> Iterator[DeviceDemand]:
        """Yields the alternatives of a request."""
        field = f"spec.devices.requests[{index}]"
        if (request.exactly is None) == (not request.first_available):
            raise self._refuse(field, "needs one of exactly and firstAvailable; other forms are not known")
        if request.exactly is not None:
            yield self._demand(request.exactly, request.name, request.name, f"{field}.exactly")
        for number, each in enumerate(request.first_available):
            place = f"{field}.firstAvailable[{number}]"
            yield self._demand(each, f"{request.name}/{each.name}", request.name, place)

    def _demand(self, query: DeviceQuery, name: str, request: str, field: str) -> DeviceDemand:
        wanted = self._classes.get(query.device_class_name)
        if wanted is None:
            text = f"is {one_line(query.device_class_name, 60)}: the cluster has no DeviceClass of this name"
            raise self._refuse(f"{field}.deviceClassName", text)
        if query.allocation_mode not in (EXACT_COUNT, ALL, ""):
            text = f"is {one_line(query.allocation_mode, 60)}: {EXACT_COUNT} and {ALL} are known"
            raise self._refuse(f"{field}.allocationMode", text)
        place = f"DeviceClass {wanted.metadata.name}: spec"
        return DeviceDemand(
            name=name,
            request=request,
            class_name=query.device_class_name,
            selectors=(
                *self._selectors(wanted.spec.selectors, place),
                *self._selectors(query.selectors, f"{self._name}: {field}"),
            ),
            count=0 if query.allocation_mode == ALL else self._count(query, field),
            admin=query.admin_access,
            tolerations=query.tolerations,
            amounts={
                key: self._amount(value, f"{field}.capacity.requests.{one_line(key, 60)}")
                for key, value in query.capacity.requests.items()
            },
        )

    def _count(self, query: DeviceQuery, field: str) -> int:
        count = 1 if query.count is None else query.count
        if not 1 <= count <= CLAIM_ENTRIES:
            raise self._refuse(f"{field}.count", f"is {count}: a claim has 1 to {int(CLAIM_ENTRIES)} devices")
        return count

    def _selectors(self, selectors: Sequence[Selector], place: str) -> Iterator[tuple[str, str]]:
        for index, each in enumerate(selectors):
            where = f"{place}.selectors[{index}]"
            if each.cel is None:
                raise ClaimRefused(f"{where} has no cel; other kinds of selectors are not known")
            if each.cel.expression != GUARD:
                yield f"{where}.cel.expression", each.cel.expression

    def _amount(self, value: object, field: str) -> Decimal:
        try:
            amount = parse_quantity(quantity_text(value))
        except ValueError as error:
            raise self._refuse(field, f"is no quantity: {error}") from None
        if amount < 0:  # the device would have more than it has for the next claim
            raise self._refuse(field, f"is {one_line(str(value), 60)}: an amount is 0 or more")
        return amount

    def rule(self, index: int, constraint: Constraint) -> AttributeRule:
        """Returns a constraint."""
        match, distinct = constraint.match_attribute, constraint.distinct_attribute
        attribute = match or distinct
        if not attribute or (match and distinct):
            text = "needs one of matchAttribute and distinctAttribute; other constraints are not known"
            raise self._refuse(f"spec.devices.constraints[{index}]", text)
        return AttributeRule(attribute=attribute, distinct=not match, requests=frozenset(constraint.requests))

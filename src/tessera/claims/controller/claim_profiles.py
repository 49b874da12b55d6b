"""Which profiles a ResourceClaim asks for.

A claim selects devices by expressions, and planning places profiles. So each request gets the smallest profile of which
the request's class and selectors choose a device in this cluster. Where they choose some sorts of the profile's devices
only, for instance those of one model, the claim has a *choice*: nodes that have another device of the profile too are
no places for its pod. Selectors that choose the same sorts are one choice, so there are few, however many selectors
tenants write.

Devices that ``matchAttribute`` compares are given of one card, where all attributes but the places' are equal. What
planning cannot keep is refused with the field: admin access, ``All``, and ``distinctAttribute``.
"""

import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import ClassVar

import msgspec

from tessera.api.dra.claims import ClaimSpec, DeviceClass, ResourceClaim, is_our_class
from tessera.api.names import NodeName
from tessera.cel.metering import Meter, OutOfBudgetError
from tessera.claims.controller.published_devices import NodeDevices, PublishedDevices, Sort, is_known
from tessera.dra.devices import Device
from tessera.dra.driver_classes import check_served
from tessera.dra.matching import consumed_amounts
from tessera.dra.opaque_configs import ConfigRefused, check_configs
from tessera.dra.requests import ClaimDemand, ClaimRefused, DeviceDemand, read_demand
from tessera.dra.selectors import DeviceSelectors
from tessera.limits.claims import EXPRESSIONS, NAMESPACE_EXPRESSIONS_COST
from tessera.mig.names import is_device_profile, parse_profile_name

#: Stands for the claim's own name in what is remembered of a specification.
_NAME = "claim"


class ClaimProfiles(msgspec.Struct, frozen=True):
    """What a claim asks for.

    Attributes:
        profiles: one for each device, in the order of the requests; empty for a claim of other drivers.
        choices: the choices that a node must keep.
        one_card: all devices are of one card, since a constraint compares them.
        problem: why no device is given; empty if nothing is wrong.
    """

    profiles: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    one_card: bool = False
    problem: str = ""


_TOO_COSTLY = ClaimProfiles(
    problem=f"{_NAME}: the selectors of claims in its namespace cost more than {NAMESPACE_EXPRESSIONS_COST:,} units;"
    " make them shorter, and create the claims again"
)


class _Choice(msgspec.Struct, frozen=True):
    """Some sorts of the devices of a profile."""

    profile: str
    sorts: frozenset[Sort]


class ProfileReader:
    """Reads claims, and remembers what each specification asks for until classes or devices change.

    Args:
        driver: the driver whose devices are given.
        published: its devices.
    """

    #: A record of the state does not have them, and a state that was read makes them anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_selectors", "_known", "_meters")
    _selectors: DeviceSelectors | None = None
    #: By specification; emptied at the limit.
    _known: dict[bytes, ClaimProfiles] | None = None
    #: By namespace, what selectors of its claims may still cost.
    _meters: dict[str, Meter] | None = None

    def __init__(self, driver: str, published: PublishedDevices) -> None:
        self._driver = driver
        self._published = published
        self.classes: dict[str, DeviceClass] = {}
        self._choices: dict[str, _Choice] = {}

    def forget(self) -> None:
        """Forgets what is remembered: classes or sorts of devices have changed."""
        self._known, self._meters, self._choices = None, None, {}

    @property
    def selectors(self) -> DeviceSelectors:
        """Evaluates and remembers selectors."""
        if self._selectors is None:
            self._selectors = DeviceSelectors()
        return self._selectors

    def demand(self, claim: ResourceClaim) -> ClaimDemand:
        """Returns the requests of a claim.

        Raises:
            ClaimRefused: a class is missing, or a field is not known.
        """
        return read_demand(claim_name(claim), claim.spec, self.classes)

    def read(self, claim: ResourceClaim) -> ClaimProfiles:
        """Returns what a claim asks for."""
        if self._known is None or len(self._known) >= EXPRESSIONS:
            self._known = {}
        key = msgspec.json.encode(claim.spec)
        found = self._known.get(key)
        if found is None:
            meter = self._meter(claim.metadata.namespace)
            found = self._read(claim.spec, meter)
            if meter.left >= 0:
                self._known[key] = found
        if not found.problem:
            return found
        own = claim_name(claim) + found.problem.removeprefix(_NAME)
        return msgspec.structs.replace(found, problem=own if found.problem.startswith(_NAME) else found.problem)

    def _meter(self, namespace: str) -> Meter:
        if self._meters is None:
            self._meters = {}
        return self._meters.setdefault(namespace, Meter(NAMESPACE_EXPRESSIONS_COST))

    def _read(self, spec: ClaimSpec, meter: Meter) -> ClaimProfiles:
        requests = spec.devices.requests
        queries = [query for each in requests for query in (each.exactly, *each.first_available) if query is not None]
        classes = [
            self.classes[query.device_class_name] for query in queries if query.device_class_name in self.classes
        ]
        ours = [is_our_class(each, self._driver) for each in classes]
        if not any(ours):
            return ClaimProfiles()
        if not all(ours):
            return ClaimProfiles(problem=f"{_NAME} asks for devices of several drivers: make a claim for each")
        if meter.left < 0:
            return _TOO_COSTLY
        try:
            check_served(_NAME, spec, self._driver)
            demand = read_demand(_NAME, spec, self.classes)
            fields = enumerate(spec.devices.config)
            check_configs(((f"{_NAME}: spec.devices.config[{n}]", each) for n, each in fields), self._driver)
            chosen = [self._choose(alternatives, meter) for alternatives in demand.requests]
            one_card = _compares(demand, [one for one, _ in chosen])
            choices = [self._choice(one, profile, meter) for one, profile in chosen]
        except OutOfBudgetError:
            return _TOO_COSTLY
        except (ClaimRefused, ConfigRefused) as error:
            return ClaimProfiles(problem=str(error))
        profiles = tuple(profile for one, profile in chosen for _ in range(one.count))
        return ClaimProfiles(profiles, tuple(dict.fromkeys(each for each in choices if each)), one_card)

    def _choose(self, alternatives: Sequence[DeviceDemand], meter: Meter) -> tuple[DeviceDemand, str]:
        """Returns the first alternative of which the cluster has a device, and the smallest profile for it."""
        problems: dict[str, None] = {}
        for demand in alternatives:
            for wrong, field in ((demand.admin, "adminAccess"), (not demand.count, "allocationMode All")):
                if wrong:
                    raise ClaimRefused(f"{_NAME}: request {demand.name}: {field} is not served: ask for a count")
            matched = [
                (not is_known(sort, device), *_size(sort[0]))
                for sort, device in self._published.sorts.items()
                if device is not None and self._matches(demand, device, problems, meter)
            ]
            if matched:
                return demand, min(matched)[-1]
        why = "; ".join(problems) or "its class and selectors choose none"
        raise ClaimRefused(
            f"{_NAME}: request {alternatives[0].name}: no node publishes a device for it: {why}; see kubectl get"
            " resourceslices"
        )

    def _matches(self, demand: DeviceDemand, device: Device | None, problems: dict[str, None], meter: Meter) -> bool:
        if device is None:
            return False
        for place, expression in demand.selectors:
            result = self.selectors.matches(expression, device, meter)
            if result.problem and len(problems) < 3:
                problems[f"{place.removeprefix(f'{_NAME}: ')}: {result.problem}"] = None
            if not result.matches:
                return False
        return consumed_amounts(demand, device) is not None

    # Choices --------------------------------------------------------------------------------------------------------

    def _choice(self, demand: DeviceDemand, profile: str, meter: Meter) -> str:
        every = {sort: device for sort, device in self._published.sorts.items() if sort[0] == profile}
        chosen = frozenset(sort for sort, device in every.items() if self._matches(demand, device, {}, meter))
        if len(chosen) == len(every):
            return ""
        digest = sha256(msgspec.json.encode(sorted(chosen))).hexdigest()[:16]
        name = f"{profile} that the claim's selectors choose ({digest})"
        self._choices[name] = _Choice(profile, chosen)
        return name

    def kept_by(self, node: NodeName) -> frozenset[str]:
        """Returns the choices that a node keeps: all of its devices of the profile are chosen."""
        devices = self._published.nodes.get(node)
        return frozenset(name for name, each in self._choices.items() if devices is not None and _keeps(devices, each))


def _keeps(devices: NodeDevices, choice: _Choice) -> bool:
    found = {sort for sort in devices.sorts if sort[0] == choice.profile}
    return bool(found) and found <= choice.sorts


def claim_name(claim: ResourceClaim) -> str:
    """Names a claim in messages."""
    return f"claim {claim.metadata.namespace}/{claim.metadata.name}"


def _size(profile: str) -> tuple[int, int, str]:
    if is_device_profile(profile):
        return sys.maxsize, 0, profile
    name = parse_profile_name(profile)
    return name.memory_gb, name.slices, profile


def _compares(demand: ClaimDemand, chosen: Iterable[DeviceDemand]) -> bool:
    """True if a constraint compares several devices.

    Raises:
        ClaimRefused: it wants them to differ.
    """
    counted, found = list(chosen), False
    for index, rule in enumerate(demand.rules):
        if sum(each.count for each in counted if rule.concerns(each)) > 1:
            if rule.distinct:
                field = f"spec.devices.constraints[{index}].distinctAttribute"
                raise ClaimRefused(f"{_NAME}: {field} is not served for several devices: leave it out")
            found = True
    return found

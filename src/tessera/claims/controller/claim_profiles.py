"""Which profiles a ResourceClaim asks for.

A claim selects devices by expressions, and planning places profiles. So each request gets the smallest profile of which
the request's class and selectors choose a device in this cluster. Where they choose some sorts of the profile's devices
only, for instance those of one model, the claim has a *choice*: nodes that have another device of the profile too are
no places for its pod. Selectors that choose the same sorts are one choice, so there are few, however many selectors
tenants write.

Whole cards have one profile, and so have the shares of cards; a claim that asks for more than one share of a card, or
for more memory than one has, takes several. A request that chooses single cards, cards of one value, or places on them
asks for a further name of the profile (:mod:`tessera.claims.controller.card_choices`). Constraints become rules over
the cards of the devices (:mod:`tessera.claims.controller.card_choices`).

``allocationMode: All`` is, as for kube-scheduler's allocator, every device of a node that class and selectors choose:
each whole card, every placement of a profile, one share of each card. It can be kept where they can all be had at once,
so not for profiles that exclude one another. The pod gets what most nodes would give.
"""

import sys
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import ClassVar

import msgspec

from tessera.api.names import CLAIMED_CARD, NodeName
from tessera.cel.evaluator import Meter, OutOfBudgetError
from tessera.claims.controller.card_choices import Answer, CardChoices, ConstraintReader
from tessera.claims.controller.chosen_devices import ChosenDevices, Counts, shares_needed
from tessera.claims.controller.published_devices import NodeDevices, Place, PublishedDevices, Sort, is_known
from tessera.dra.claims import ClaimSpec, DeviceClass, DeviceConfig, ResourceClaim, is_our_class
from tessera.dra.devices import Device, DeviceId
from tessera.dra.driver_objects import check_served
from tessera.dra.limits import (
    CARD_CHOICES,
    CLAIM_ENTRIES,
    EXPRESSIONS,
    NAMESPACE_CARD_CHOICES,
    NAMESPACE_EXPRESSIONS_COST,
    NAMESPACE_EXPRESSIONS_SECONDS,
)
from tessera.dra.matching import consumed_amounts
from tessera.dra.node_devices import PLACED_BY
from tessera.dra.opaque_configs import ConfigRefused, check_configs, check_share, settings_of
from tessera.dra.requests import GUARD, ClaimDemand, ClaimRefused, DeviceDemand, read_demand
from tessera.dra.resource_slices import SliceDevice
from tessera.dra.selectors import DeviceSelectors
from tessera.limits import CARD_SLOTS
from tessera.mig.models import model_by_product
from tessera.mig.names import CLAIMED_SHARE, is_device_profile, parse_profile_name
from tessera.placement.demand import CardSpread
from tessera.text import one_line

#: Stands for the claim's own name in what is remembered of a specification.
_NAME = "claim"


class ClaimProfiles(msgspec.Struct, frozen=True):
    """What a claim asks for.

    Attributes:
        profiles: one for each device, in the order of the requests; empty for a claim of other drivers.
        choices: the choices that a node must keep.
        spread: how the devices lie on cards, since constraints compare them.
        problem: why no device is given; empty if nothing is wrong.
        foreign: of a claim without a class of ours, the class that does not exist: nobody allocates it.
        for_now: the problem is one of the namespace, and ends without a change of the claim.
    """

    profiles: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    spread: CardSpread = ()
    problem: str = ""
    foreign: str = ""
    for_now: bool = False


_TOO_COSTLY = ClaimProfiles(
    problem=f"{_NAME}: the selectors of claims in its namespace cost more than {NAMESPACE_EXPRESSIONS_COST:,} units in"
    f" {NAMESPACE_EXPRESSIONS_SECONDS // 60:.0f} minutes: wait, or make them shorter and create the claims again",
    for_now=True,
)


_TOO_MANY = ClaimProfiles(
    problem=f"{_NAME} chooses single cards, or All; living pods may do so in {NAMESPACE_CARD_CHOICES:d} ways in a"
    f" namespace, fewer where other namespaces use some of the cluster's {CARD_CHOICES:d}: wait until a pod ends, or"
    " write the selectors as other claims do",
    for_now=True,
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

    Attributes:
        now: monotonic seconds; the caller sets it.
    """

    #: A record of the state does not have them, and a state that was read makes them anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_known", "_meters", "_counting")
    #: By specification; emptied at the limit.
    _known: dict[bytes, ClaimProfiles] | None = None
    #: The specifications whose answers depend on which cards there are.
    _counting: set[bytes] | None = None
    #: By namespace, what selectors of its claims may still cost, as of a time.
    _meters: dict[str, tuple[Meter, float]] | None = None

    def __init__(self, driver: str, published: PublishedDevices) -> None:
        self._driver = driver
        self._published = published
        self.classes: dict[str, DeviceClass] = {}
        self._choices: dict[str, _Choice] = {}
        self.chosen = ChosenDevices(published)
        self.cards = CardChoices(published, self.chosen)
        self._constraints = ConstraintReader(published, self.cards)
        self.now = 0.0

    def forget(self) -> None:
        """Forgets what is remembered: classes or sorts of devices have changed."""
        self._known, self._meters, self._choices, self._counting = None, None, {}, None
        self.cards.clear()
        self.chosen.clear()

    def forget_counts(self) -> AbstractSet[bytes]:
        """Forgets the answers that depend on which cards there are; returns their specifications."""
        counting, self._counting = self._counting or set(), None
        for key in counting:
            (self._known or {}).pop(key, None)
        return counting

    @property
    def selectors(self) -> DeviceSelectors:
        """Evaluates and remembers selectors."""
        return self.chosen.selectors

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
        key = spec_key(claim)
        found = self._known.get(key)
        if found is None:
            meter = self._meter(claim.metadata.namespace)
            self.chosen.counted, self.cards.namespace = False, claim.metadata.namespace
            found = self._read(claim.spec, meter)
            if meter.left >= 0 and not found.for_now:
                self._known[key] = found
            if self.chosen.counted:
                self._counting = {*(self._counting or ()), key}
        self.cards.hold((*found.profiles, *found.choices))
        if not found.problem:
            return found
        own = claim_name(claim) + found.problem.removeprefix(_NAME)
        return msgspec.structs.replace(found, problem=own if found.problem.startswith(_NAME) else found.problem)

    def _meter(self, namespace: str) -> Meter:
        if self._meters is None:
            self._meters = {}
        meter, since = self._meters.get(namespace, (Meter(NAMESPACE_EXPRESSIONS_COST), self.now))
        back = meter.limit * (self.now - since) / NAMESPACE_EXPRESSIONS_SECONDS
        meter.left = min(meter.limit, max(meter.left, -1) + back)
        self._meters[namespace] = meter, self.now
        return meter

    def knows(self, choice: str) -> bool:
        """True for a choice that a claim has, or a name of cards."""
        return choice in self._choices or self.cards.is_known(choice)

    def take_freed(self) -> AbstractSet[str]:
        """Returns, once, the names that are forgotten, and forgets which claims had them."""
        freed = self.cards.take_freed()
        if freed:
            known = (self._known or {}).items()
            self._known = {key: each for key, each in known if freed.isdisjoint((*each.profiles, *each.choices))}
        return freed

    def _read(self, spec: ClaimSpec, meter: Meter) -> ClaimProfiles:
        requests = spec.devices.requests
        queries = [query for each in requests for query in (each.exactly, *each.first_available) if query is not None]
        classes = [
            self.classes[query.device_class_name] for query in queries if query.device_class_name in self.classes
        ]
        ours = [is_our_class(each, self._driver) for each in classes]
        if not any(ours):
            return ClaimProfiles(foreign=self._find_absent(spec) if len(classes) < len(queries) else "")
        if not all(ours):
            return ClaimProfiles(problem=f"{_NAME} asks for devices of several drivers: make a claim for each")
        if meter.left < 0:
            return _TOO_COSTLY
        try:
            check_served(_NAME, spec, self._driver)
            demand = read_demand(_NAME, spec, self.classes)
            if any(each.admin for alternatives in demand.requests for each in alternatives):
                self._check_admin(demand)
                return ClaimProfiles()
            configs = self._read_configs(spec, demand)
            answers = [each for alternatives in demand.requests for each in self._choose(alternatives, meter)]
            for each in answers:
                device_type = "gpu" if is_device_profile(each.profile) else "mig"
                settings = settings_of(configs, self._driver, each.demand.name, device_type)
                if each.profile == CLAIMED_SHARE:
                    check_share(f"{_NAME}: request {each.demand.name}", settings)
            return self._join(demand, answers, meter)
        except OutOfBudgetError:
            return _TOO_COSTLY
        except OverflowError:
            return _TOO_MANY
        except (ClaimRefused, ConfigRefused) as error:
            return ClaimProfiles(problem=str(error))

    def _find_absent(self, spec: ClaimSpec) -> str:
        """Names the first class that the cluster does not have."""
        try:
            read_demand(_NAME, spec, self.classes)
        except ClaimRefused as error:
            return str(error).removeprefix(f"{_NAME}: ")
        return ""

    def _check_admin(self, demand: ClaimDemand) -> None:
        """Leaves a claim for admin access to kube-scheduler: it takes no room, so there is nothing to plan."""
        for each in (each for alternatives in demand.requests for each in alternatives):
            selectors = self.classes[each.class_name].spec.selectors
            field = f"{_NAME}: request {each.name}: adminAccess"
            if not each.admin:
                raise ClaimRefused(f"{field} is wanted by other requests: make a claim of its own for them")
            if any(one.cel is not None and one.cel.expression == GUARD for one in selectors):
                raise ClaimRefused(
                    f"{field} is given by kube-scheduler, which a selector of DeviceClass {each.class_name} keeps away:"
                    f" use a class without it, and tolerate {PLACED_BY.key}"
                )

    def _read_configs(self, spec: ClaimSpec, demand: ClaimDemand) -> list[tuple[str, DeviceConfig]]:
        fields = [(f"{_NAME}: spec.devices.config[{n}]", each) for n, each in enumerate(spec.devices.config)]
        for name in dict.fromkeys(each.class_name for alternatives in demand.requests for each in alternatives):
            configs = enumerate(self.classes[name].spec.config)
            fields += [(f"DeviceClass {name}: spec.config[{n}]", each) for n, each in configs]
        check_configs(fields, self._driver)
        return fields

    def _join(self, demand: ClaimDemand, answers: Sequence[Answer], meter: Meter) -> ClaimProfiles:
        spread = self._constraints.read(_NAME, demand, answers, meter)
        choices = [self._choice(each, meter) for each in answers]
        for request in {each.demand.name: each.demand for each in answers if not each.demand.count}.values():
            counts = ((each.profile, each.count) for each in answers if each.demand is request)
            choices.append(self.cards.all_of(request, tuple(counts)))
        kept = tuple(dict.fromkeys(each for each in choices if each))
        return ClaimProfiles(self.cards.profiles(answers), kept, spread)

    def _choose(self, alternatives: Sequence[DeviceDemand], meter: Meter) -> Sequence[Answer]:
        """Returns the first alternative of which the cluster has a device, and the smallest profile for it.

        Of a request for all devices it returns each profile.
        """
        problems: dict[str, None] = {}
        for demand in alternatives:
            if not demand.count:
                counts = self._choose_all(demand, meter)
                places = self._places(demand, meter) if CLAIMED_SHARE in dict(counts) else 1
                if counts:
                    return [Answer(demand, each, n, places if each == CLAIMED_SHARE else 1) for each, n in counts]
            found = {
                sort[0]: (not is_known(sort, device), *_size(sort[0]))
                for sort, device in self._published.sorts.items()
                if device is not None and self._matches(demand, device, problems, meter)
            }
            places = self._places(demand, meter)
            if places:
                found.setdefault(CLAIMED_SHARE, (False, *_size(CLAIMED_SHARE)))
            if self.chosen.is_by_card(demand):
                given = self.chosen.profiles(demand, meter)
                found = {
                    sort[0]: (not is_known(sort, device), *_size(sort[0]))
                    for sort, device in self._published.sorts.items()
                    if device is not None and sort[0] in given
                }
            if found and demand.count:
                profile = min(found, key=found.__getitem__)
                return [Answer(demand, profile, demand.count, places if profile == CLAIMED_SHARE else 1)]
        wanted = alternatives[0]
        if not problems and (error := self.chosen.error(wanted, meter)):
            problems[error.removeprefix(f"{_NAME}: ")] = None
        amounts = [f"capacity.requests.{one_line(key, 60)}" for key in wanted.amounts]
        why = "; ".join(problems) or " and ".join(["its class and selectors choose none", *amounts])
        given = {sort[0] for sort in self._published.sorts}
        if self._asks_for(wanted, shared=False) and CLAIMED_CARD not in given:
            why = "no node gives whole cards to claims: a card that is cut on demand is in MIG mode, and never whole"
        elif self._asks_for(wanted, shared=True) and CLAIMED_SHARE not in given:
            why = "no node gives shares to claims: a node's sharing profile divides its cards, and its API server must"
            why += " keep consumable capacity (Kubernetes 1.36)"
        raise ClaimRefused(
            f"{_NAME}: request {wanted.name}: no node publishes a device for it: {why}; see kubectl get resourceslices"
        )

    def _choose_all(self, demand: DeviceDemand, meter: Meter) -> Counts:
        """Returns all devices of a node that a demand chooses, where they can be had at once; empty without any.

        Raises:
            ClaimRefused: they cannot be had on any node.
        """
        problem = ""
        for counts, node in self.chosen.everything(demand, meter).items():
            total = sum(count for _, count in counts)
            why = f"{total} devices of a node; a claim has {int(CLAIM_ENTRIES)}" if total > CLAIM_ENTRIES else ""
            why = why or find_overlap(self._published.nodes[node], self.chosen.on(node, demand, meter))
            if not why:
                return counts
            problem = problem or why
        if problem:
            raise ClaimRefused(f"{_NAME}: request {demand.name}: allocationMode All chooses {problem}")
        return ()

    def _places(self, demand: DeviceDemand, meter: Meter) -> int:
        """Returns the fewest shares of a card that serve a demand; 0 if it chooses no share."""
        if self.chosen.is_by_card(demand):
            return self.chosen.places(demand, meter)
        every = (each for sort, each in self._published.sorts.items() if sort[0] == CLAIMED_SHARE and each is not None)
        able = (shares_needed(demand, each) for each in every if self._matches(demand, each, {}, meter))
        return min(able, default=0)

    def _asks_for(self, demand: DeviceDemand, *, shared: bool) -> bool:
        """True if the class chooses a device of which nothing is known but that it is a whole, or a shared, card."""
        bare = Device(id=DeviceId(self._driver, "", ""), attributes={f"{self._driver}/type": "gpu"}, shared=shared)
        place = f"DeviceClass {demand.class_name}:"
        texts = [text for where, text in demand.selectors if where.startswith(place)]
        return bool(texts) and all(self.selectors.matches(text, bare).matches for text in texts)

    def _matches(self, demand: DeviceDemand, device: Device | None, problems: dict[str, None], meter: Meter) -> bool:
        if device is None:
            return False
        for place, expression in demand.selectors:
            result = self.selectors.matches(expression, device, meter)
            problem = "" if self.chosen.reads_own(expression) else result.problem  # devices are asked one by one
            if problem and len(problems) < 3:
                problems[f"{place.removeprefix(f'{_NAME}: ')}: {problem}"] = None
            if not result.matches:
                return False
        return consumed_amounts(demand, device) is not None

    # Choices --------------------------------------------------------------------------------------------------------

    def _choice(self, answer: Answer, meter: Meter) -> str:
        demand, profile = answer.demand, answer.profile
        if self.chosen.is_by_card(demand):
            return ""
        every = {sort: device for sort, device in self._published.sorts.items() if sort[0] == profile}
        chosen = frozenset(
            sort
            for sort, device in every.items()
            if self._matches(demand, device, {}, meter)
            and (device is None or not device.shared or shares_needed(demand, device) <= answer.places)
        )
        if len(chosen) == len(every):
            return ""
        digest = sha256(msgspec.json.encode(sorted(chosen))).hexdigest()[:16]
        name = f"{'any ' * is_device_profile(profile)}{profile} that the claim's selectors choose ({digest})"
        self._choices[name] = _Choice(profile, chosen)
        return name

    def kept_by(self, node: NodeName, only: str = "") -> AbstractSet[str]:
        """Returns the choices that a node keeps: all of its devices of the profile are chosen, or as many as wanted.

        Args:
            node: the node.
            only: the one choice that is looked at; empty for all. A tenant makes new ones at will.
        """
        devices = self._published.nodes.get(node)
        choices = {only: self._choices[only]} if only in self._choices else {} if only else self._choices
        kept = {name for name, each in choices.items() if devices is not None and _keeps(devices, each)}
        return kept | self.cards.all_kept_by(node, only)


def _keeps(devices: NodeDevices, choice: _Choice) -> bool:
    found = {sort for sort in devices.sorts if sort[0] == choice.profile}
    return bool(found) and found <= choice.sorts


def find_overlap(devices: NodeDevices, places: Iterable[Place]) -> str:
    """Names two devices of these places of a node that cannot be had at once; empty if there are none."""
    taken: dict[str, list[tuple[int, str]]] = {}
    for place in places:
        (gpu, profile, start), (_, device) = place, devices.parts[place]
        mask = _mask(device, profile, start)
        for other, name in taken.get(gpu, ()):
            if mask & other:
                return (
                    f"{name} and {device.name}, which exclude one another: kube-scheduler's allocator, too, gives all"
                    " devices or none. Select one profile, or ask for a count"
                )
        taken.setdefault(gpu, []).append((mask, device.name))
    return ""


def _mask(device: SliceDevice, profile: str, start: int) -> int:
    """Returns what a device takes of its card, as bits."""
    if is_device_profile(profile):
        return -1
    product = next((each.string for key, each in device.attributes.items() if key.endswith("productName")), None)
    model = model_by_product(product or "")
    row = model.geometry.find(profile) if model is not None else None
    if model is not None and row is not None and start in row.starts:
        return model.geometry.claim(row, start)
    size = next((each.integer for key, each in device.attributes.items() if key.endswith("size")), None) or 1
    return ((1 << min(size, int(CARD_SLOTS))) - 1) << start


def spec_key(claim: ResourceClaim) -> bytes:
    """Returns what claims with the same specification have in common."""
    return msgspec.json.encode(claim.spec)


def claim_name(claim: ResourceClaim) -> str:
    """Names a claim in messages."""
    return f"claim {claim.metadata.namespace}/{claim.metadata.name}"


def _size(profile: str) -> tuple[int, int, str]:
    if is_device_profile(profile):
        return sys.maxsize, 0, profile
    name = parse_profile_name(profile)
    return name.memory_gb, name.slices, profile

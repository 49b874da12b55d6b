"""Which devices of a node fulfil the claims of a pod: an exact search.

Claims, requests and devices are filled one after the other, in the order of the pools. A request tries sets of devices,
not their orders; ``firstAvailable`` tries its alternatives in order. The first solution counts. If there is one, the
search finds it, unless it tries more devices than ``CLAIM_STEPS``.

Rules, as in kube-scheduler's allocator (k8s.io/dynamic-resource-allocation/structured):

- a device is held by one claim alone, a shared one by many, and by one request several times, as long as its capacity
  suffices;
- what devices take from a counter is at most the counter;
- a taint NoSchedule or NoExecute must be tolerated;
- constraints compare values of the same type; a device without the attribute breaks them;
- ``All`` takes every device that the selectors choose, so it fails if one of them cannot be had; shared ones without
  room for the request are not among them;
- admin access takes nothing: a device in use can be had, once in each claim.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from tessera.cel.evaluator import Meter, OutOfBudgetError
from tessera.dra.devices import NO_EXECUTE, NO_SCHEDULE, Device, Holdings, Pool, qualify
from tessera.dra.limits import CLAIM_ENTRIES, CLAIM_STEPS, EXPRESSION_COST
from tessera.dra.requests import AttributeRule, ClaimDemand, DeviceDemand
from tessera.dra.selectors import DeviceSelectors


class ChosenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One result.

    Attributes:
        claim: number of the claim in the call.
        demand: the request or alternative that the device fulfils.
        device: the device.
        amounts: what is consumed of a shared device.
        share: id of the share of such a device; empty to have one made.
    """

    claim: int
    demand: DeviceDemand
    device: Device
    amounts: Mapping[str, Decimal] = {}
    share: str = ""


class NoMatch(msgspec.Struct, frozen=True):
    """The claims cannot be fulfilled on the node now.

    Attributes:
        reason: names claim, request and the devices in the way.
        unfinished: the search was given up, so there may be a solution.
    """

    reason: str
    unfinished: bool = False


def match_claims(
    claims: Sequence[ClaimDemand],
    pools: Sequence[Pool],
    holdings: Holdings,
    selectors: DeviceSelectors,
) -> tuple[ChosenDevice, ...] | NoMatch:
    """Returns devices for all claims, or why there are none.

    Args:
        claims: the claims without an allocation, of one pod.
        pools: the pools of the node.
        holdings: what other claims hold of them.
        selectors: evaluates and remembers selectors.
    """
    search = _Search(claims, pools, holdings.copy(), selectors)
    name = claims[0].name if claims else "the pod"
    try:
        if search.solve():
            return tuple(search.chosen)
    except _OutOfStepsError:
        text = f"more than {CLAIM_STEPS:,} tries of devices are needed to fulfil all constraints and selectors"
        return NoMatch(f"{name}: {text}", unfinished=True)
    except RecursionError:  # three calls deep for each device, so some 300 devices
        count = sum(len(each.requests) for each in claims)
        return NoMatch(f"{name}: the pod's claims have {count:,} requests, too many for one pod")
    except OutOfBudgetError:
        return NoMatch(f"{name}: its selectors cost more than {EXPRESSION_COST:,} units on a node")
    return NoMatch(search.reason)


class _OutOfStepsError(Exception):
    """The search is given up."""


class _Candidate(msgspec.Struct, frozen=True):
    device: Device
    pool: Pool
    amounts: Mapping[str, Decimal]


class _Search:
    """The state of the search.

    Attributes:
        chosen: devices of the requests that are filled, in their order.
        reason: why the request failed that came farthest.
    """

    def __init__(
        self,
        claims: Sequence[ClaimDemand],
        pools: Sequence[Pool],
        holdings: Holdings,
        selectors: DeviceSelectors,
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._holdings = holdings
        self._selectors = selectors
        self.chosen: list[ChosenDevice] = []
        self.reason = ""
        self._farthest = (-1, -1)
        self._steps = 0
        self._budget = Meter(EXPRESSION_COST)
        #: Devices that selectors and amounts admit, by claim number and name of the request.
        self._admitted: dict[tuple[int, str], tuple[list[_Candidate], Counter[str]]] = {}
        #: The same by value of an attribute, for requests that a constraint concerns.
        self._by_value: dict[tuple[int, str, str], dict[object, list[_Candidate]]] = {}

    def solve(self) -> bool:
        """True if all claims are fulfilled; :attr:`chosen` then has the devices."""
        return self._fill_requests(0, 0)

    def _fill_requests(self, claim: int, request: int) -> bool:
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._fill_requests(claim + 1, 0)
        for demand in requests[request]:
            candidates, refused = self._admit(claim, demand)
            if not demand.count:
                candidates = [each for each in candidates if not each.device.shared or self._has_room(each)]
            count = demand.count or len(candidates)
            held = sum(each.claim == claim for each in self.chosen)
            if not count or (not demand.count and any(pool.problem for pool in self._pools)):
                self._note(claim, request, demand, refused)
            elif held + count > CLAIM_ENTRIES:
                self._note(claim, request, demand, Counter({f"more than {int(CLAIM_ENTRIES)} devices in a claim": 1}))
            elif self._fill(claim, request, demand, count, candidates):
                return True
        return False

    def _fill(
        self, claim: int, request: int, demand: DeviceDemand, count: int, candidates: Sequence[_Candidate]
    ) -> bool:
        """Chooses ``count`` of the candidates, and fills the requests after this one."""
        if not count:
            return self._fill_requests(claim, request + 1)
        refused: Counter[str] = Counter()
        usable = self._usable(claim, demand, candidates, refused)
        repeats = bool(demand.count) and any(each.device.shared for each in usable)
        if len(usable) < (1 if repeats else count):
            self._note(claim, request, demand, refused + self._admitted[claim, demand.name][1])
            return False
        for index in range(len(usable) if repeats else len(usable) - count + 1):
            candidate = usable[index]
            left = usable[index + (not (repeats and candidate.device.shared)) :]
            before = self._take(claim, demand, candidate)
            if self._may_go_on(claim, request) and self._fill(claim, request, demand, count - 1, left):
                return True
            self._give_back(demand, candidate.device, before)
        return False

    def _may_go_on(self, claim: int, request: int) -> bool:
        """False if a constraint leaves too few devices to a later request, whatever is chosen until then."""
        for rule in self._claims[claim].rules:
            chosen = () if rule.distinct else self._of_rule(claim, rule)
            if not chosen:
                continue
            value = _typed_value(chosen[0].device, rule)
            for later, alternatives in enumerate(self._claims[claim].requests[request + 1 :], request + 1):
                if not any(self._has_enough(claim, demand, rule, value) for demand in alternatives):
                    self._note(
                        claim,
                        later,
                        alternatives[0],
                        Counter({f"have too few free devices of one {rule.attribute}": 1}),
                    )
                    return False
        return True

    def _has_enough(self, claim: int, demand: DeviceDemand, rule: AttributeRule, value: object) -> bool:
        if demand.admin or not rule.concerns(demand):
            return True
        key = (claim, demand.name, rule.attribute)
        if key not in self._by_value:
            found = self._by_value[key] = {}
            for each in self._admit(claim, demand)[0]:
                found.setdefault(_typed_value(each.device, rule), []).append(each)
        left = max(demand.count, 1)
        for each in self._by_value[key].get(value, ()):
            self._count_step()
            left -= left if each.device.shared and self._has_room(each) else self._has_room(each)
            if left <= 0:
                return True
        return False

    def _usable(
        self, claim: int, demand: DeviceDemand, candidates: Sequence[_Candidate], refused: Counter[str]
    ) -> list[_Candidate]:
        found = []
        for candidate in candidates:
            self._count_step()
            if why := self._obstacle(claim, demand, candidate):
                refused[why] += 1
            else:
                found.append(candidate)
        return found

    # -- one device ---------------------------------------------------------------------------------------------------

    def _admit(self, claim: int, demand: DeviceDemand) -> tuple[list[_Candidate], Counter[str]]:
        """Returns the devices that a request may have at all, and why others are none."""
        key = (claim, demand.name)
        if key not in self._admitted:
            refused: Counter[str] = Counter()
            found = [(device, pool) for pool in self._pools if not pool.problem for device in pool.devices]
            for place, expression in demand.selectors:
                found = [each for each in found if self._matches(place, expression, each[0], refused)]
            admitted = []
            for device, pool in found:
                self._count_step()
                amounts = consumed_amounts(demand, device)
                if amounts is None:
                    refused["too little capacity"] += 1
                else:
                    admitted.append(_Candidate(device, pool, amounts))
            self._admitted[key] = admitted, refused
        return self._admitted[key]

    def _matches(self, place: str, expression: str, device: Device, refused: Counter[str]) -> bool:
        self._count_step()
        result = self._selectors.matches(expression, device, self._budget)
        if not result.matches:
            refused[f"{place}: {result.problem}" if result.problem else "do not match the selectors"] += 1
        return result.matches

    def _obstacle(self, claim: int, demand: DeviceDemand, candidate: _Candidate) -> str:
        """Why a device cannot be chosen now; empty if it can."""
        device = candidate.device
        for taint in device.taints:
            if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not taint.is_tolerated(demand.tolerations):
                return f"tainted {taint.key}={taint.value}"
        in_claim = any(each.device.id == device.id for each in self.chosen if each.claim == claim)
        if in_claim and not device.shared:
            return "chosen already"
        if demand.admin:
            in_use = device.id in self._holdings.exclusive or device.id in self._holdings.consumed
            if not in_use and not self._holdings.has_room(device, candidate.pool):
                return "held by others"
        elif not self._has_room(candidate):
            return "held by others"
        return "" if self._keeps_rules(claim, demand, device) else "break a constraint"

    def _has_room(self, candidate: _Candidate) -> bool:
        device = candidate.device
        if not self._holdings.has_room(device, candidate.pool):
            return False
        taken = self._holdings.consumed.get(device.id, {})
        return all(
            taken.get(name, Decimal(0)) + amount <= device.capacity[name].value
            for name, amount in candidate.amounts.items()
        )

    def _keeps_rules(self, claim: int, demand: DeviceDemand, device: Device) -> bool:
        for rule in self._claims[claim].rules:
            if not rule.concerns(demand):
                continue
            value = _typed_value(device, rule)
            if value is None:
                return False
            others = (_typed_value(each.device, rule) for each in self._of_rule(claim, rule))
            if any((other == value) is rule.distinct for other in others):
                return False
        return True

    def _of_rule(self, claim: int, rule: AttributeRule) -> list[ChosenDevice]:
        return [each for each in self.chosen if each.claim == claim and rule.concerns(each.demand)]

    def _take(self, claim: int, demand: DeviceDemand, candidate: _Candidate) -> Mapping[str, Decimal] | None:
        """Chooses a device; returns what was consumed of it before, None if nobody held it."""
        device = candidate.device
        amounts = candidate.amounts if device.shared and not demand.admin else {}
        self.chosen.append(ChosenDevice(claim=claim, demand=demand, device=device, amounts=amounts))
        before = self._holdings.consumed.get(device.id)
        if not demand.admin:
            self._holdings.take(device, amounts)
        return before

    def _give_back(self, demand: DeviceDemand, device: Device, before: Mapping[str, Decimal] | None) -> None:
        self.chosen.pop()
        if not demand.admin:
            self._holdings.release(device, before)

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > CLAIM_STEPS:
            raise _OutOfStepsError

    def _note(self, claim: int, request: int, demand: DeviceDemand, refused: Counter[str]) -> None:
        """Keeps the reason of the request that came farthest; the first of its alternatives counts."""
        if (claim, request) > self._farthest:
            self._farthest = (claim, request)
            wanted = f"{demand.count} devices" if demand.count > 1 else "a device" if demand.count else "all devices"
            problems = [pool.problem for pool in self._pools if pool.problem]
            ways = ", ".join([f"{count} {text}" for text, count in refused.most_common(4)] + problems) or "no devices"
            self.reason = (
                f"{self._claims[claim].name}: request {demand.name} wants {wanted} of class {demand.class_name}: {ways}"
            )


def consumed_amounts(demand: DeviceDemand, device: Device) -> Mapping[str, Decimal] | None:
    """Returns what a request consumes of a device's capacity; None if the device has too little or another policy."""
    wanted = {qualify(name, device.id.driver): amount for name, amount in demand.amounts.items()}
    if not wanted.keys() <= device.capacity.keys():
        return None
    found: dict[str, Decimal] = {}
    for name, capacity in device.capacity.items():
        amount = capacity.consumed(wanted.get(name))
        if amount is None or amount > capacity.value:
            return None
        found[name] = amount
    return found


def _typed_value(device: Device, rule: AttributeRule) -> tuple[type, object] | None:
    value = device.attributes.get(rule.attribute)
    return None if value is None else (type(value), value)

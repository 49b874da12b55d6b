"""Which devices fulfil claims: examples, and an exact comparison with all possible choices."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import combinations, product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.dra.claims import AllocatedDevice, ClaimSpec, DeviceClass
from tessera.dra.devices import Capacity, Device, DeviceId, DeviceTaint, Holdings, Pool
from tessera.dra.matching import ChosenDevice, NoMatch, consumed_amounts, match_claims
from tessera.dra.requests import ClaimDemand, ClaimRefused, read_demand
from tessera.dra.selectors import DeviceSelectors
from tessera_lab.scheduler.state.claim_cache import read_holdings

OURS = "gpu.tessera.dev"
SELECTORS = DeviceSelectors()


def device_class(name: str, *expressions: str) -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"selectors": selectors}}, DeviceClass)


CLASSES = {
    each.metadata.name: each
    for each in (
        device_class("any"),
        device_class("small", f"device.attributes['{OURS}'].size == 1"),
        device_class("large", f"device.attributes['{OURS}'].size == 2"),
        device_class("broken", f"device.attributes['{OURS}'].missing == 1"),
    )
}


def demand(spec: Any, name: str = "claim ns/c") -> ClaimDemand:
    return read_demand(name, msgspec.convert({"devices": spec}, ClaimSpec), CLASSES)


def exactly(name: str, class_name: str = "any", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **more}}


def device(name: str, *, slots: Sequence[int] = (), size: int = 1, card: str = "a", **more: Any) -> Device:
    return Device(
        id=DeviceId(OURS, "n1", name),
        attributes={f"{OURS}/size": size, f"{OURS}/parentUUID": card},
        counters={(f"{card}-memory", f"memory-slice-{slot}"): Decimal(1) for slot in slots},
        **more,
    )


def pool(*devices: Device) -> Pool:
    counters = {key: Decimal(1) for each in devices for key in each.counters}
    return Pool(driver=OURS, name="n1", node="n1", devices=devices, counters=counters)


def names(found: Any) -> list[str]:
    assert not isinstance(found, NoMatch), found.reason
    return [f"{each.demand.name}={each.device.id.device}" for each in found]


def match(spec: Any, *devices: Device, holdings: Holdings | None = None) -> Any:
    return match_claims([demand(spec)], [pool(*devices)], holdings or Holdings(), SELECTORS)


CARD = (
    device("whole", slots=(0, 1), size=2),
    device("left", slots=(0,)),
    device("right", slots=(1,)),
)


def test_the_first_device_of_the_pool_is_taken() -> None:
    assert names(match({"requests": [exactly("r")]}, *CARD)) == ["r=whole"]


def test_a_partition_excludes_what_covers_its_slots() -> None:
    assert names(match({"requests": [exactly("r", "small", count=2)]}, *CARD)) == ["r=left", "r=right"]
    found = match({"requests": [exactly("r", "small"), exactly("s", "large")]}, *CARD)
    assert found == NoMatch(
        "claim ns/c: request s wants a device of class large: 2 do not match the selectors, 1 held by others"
    )


def test_the_search_takes_another_device_where_the_first_leads_nowhere() -> None:
    spec = {"requests": [exactly("r"), exactly("s", "small")]}
    assert names(match(spec, *CARD)) == ["r=left", "s=right"]


def test_alternatives_are_tried_in_order() -> None:
    alternatives = [{"name": "big", "deviceClassName": "large"}, {"name": "few", "deviceClassName": "small"}]
    spec = {"requests": [exactly("r", "small"), {"name": "s", "firstAvailable": alternatives}]}
    assert names(match(spec, *CARD)) == ["r=left", "s/few=right"]


def test_all_takes_every_device_that_the_selectors_choose() -> None:
    spec = {"requests": [exactly("r", "small", allocationMode="All")]}
    assert names(match(spec, *CARD)) == ["r=left", "r=right"]
    assert isinstance(match(spec, device("whole", slots=(0,), size=2)), NoMatch)
    holdings = Holdings()
    holdings.take(CARD[1], {})
    assert "1 held by others" in match(spec, *CARD, holdings=holdings).reason


def test_constraints() -> None:
    cards = [device("a0", card="a"), device("b0", card="b"), device("b1", card="b")]
    same = {"matchAttribute": f"{OURS}/parentUUID"}
    other = {"distinctAttribute": f"{OURS}/parentUUID", "requests": ["r"]}
    assert names(match({"requests": [exactly("r", count=2)], "constraints": [same]}, *cards)) == ["r=b0", "r=b1"]
    assert names(match({"requests": [exactly("r", count=2)], "constraints": [other]}, *cards)) == ["r=a0", "r=b0"]
    missing = {"matchAttribute": "resource.kubernetes.io/pcieRoot"}
    found = match({"requests": [exactly("r")], "constraints": [missing]}, *cards)
    assert "3 break a constraint" in found.reason


def test_taints_keep_claims_away_unless_they_are_tolerated() -> None:
    tainted = device("t", taints=(DeviceTaint("tessera.dev/placed-by", "tessera", "NoSchedule"),))
    noted = device("n", taints=(DeviceTaint("x", "", "None"),))
    assert "1 tainted tessera.dev/placed-by=tessera" in match({"requests": [exactly("r")]}, tainted).reason
    assert names(match({"requests": [exactly("r")]}, noted)) == ["r=n"]
    for toleration in (
        {"key": "tessera.dev/placed-by", "value": "tessera"},
        {"operator": "Exists"},
        {"key": "tessera.dev/placed-by", "operator": "Exists", "effect": "NoSchedule"},
    ):
        assert names(match({"requests": [exactly("r", tolerations=[toleration])]}, tainted)) == ["r=t"]
    wrong = {"key": "tessera.dev/placed-by", "operator": "Exists", "effect": "NoExecute"}
    assert isinstance(match({"requests": [exactly("r", tolerations=[wrong])]}, tainted), NoMatch)


def test_admin_access_may_have_a_device_in_use_and_takes_nothing() -> None:
    holdings = Holdings()
    holdings.take(CARD[0], {})
    spec = {"requests": [exactly("r", "large", adminAccess=True), exactly("s", "large", adminAccess=True)]}
    assert "chosen already" in match(spec, *CARD, holdings=holdings).reason
    spec = {"requests": [exactly("r", "large", adminAccess=True)]}
    assert names(match(spec, *CARD, holdings=holdings)) == ["r=whole"]
    assert holdings.exclusive == {CARD[0].id}


MEMORY = Capacity(
    value=Decimal(8 * 2**30), default=Decimal(0), least=Decimal(0), most=Decimal(8 * 2**30), step=Decimal(2**20)
)


def test_shares_of_one_device_consume_its_capacity() -> None:
    shared = device("s", shared=True, capacity={f"{OURS}/memory": MEMORY}, slots=(0,))

    def wants(amount: str) -> dict[str, Any]:
        return exactly("r", capacity={"requests": {"memory": amount}})

    found = match({"requests": [wants("5Gi")]}, shared)
    assert found[0].amounts == {f"{OURS}/memory": Decimal(5 * 2**30)}
    holdings = read_holdings([pool(shared)], [_allocated("s", consumed={"memory": "5Gi"})])
    assert names(match({"requests": [wants("3Gi")]}, shared, holdings=holdings)) == ["r=s"]
    assert "1 held by others" in match({"requests": [wants("3073Mi")]}, shared, holdings=holdings).reason
    assert "1 too little capacity" in match({"requests": [wants("9Gi")]}, shared).reason
    rounded = match({"requests": [wants("1.5Ki")]}, shared)
    assert rounded[0].amounts == {f"{OURS}/memory": Decimal(2**20)}
    unknown = exactly("r", capacity={"requests": {"shares": "1"}})
    assert "1 too little capacity" in match({"requests": [unknown]}, shared).reason


def _allocated(name: str, *, consumed: dict[str, str] | None = None, **more: Any) -> AllocatedDevice:
    share = "uid" if consumed else ""
    return AllocatedDevice(
        driver=OURS, pool="n1", device=name, share_id=share, consumed_capacity=dict(consumed or {}), **more
    )


def test_allocations_hold_devices_and_those_that_vanished() -> None:
    gone = device("left", slots=(0,))
    holdings = read_holdings(
        [pool(*CARD)], [_allocated("gone"), _allocated("left"), _allocated("x", admin_access=True)]
    )
    assert holdings.exclusive == {gone.id, DeviceId(OURS, "n1", "gone")}
    assert names(match({"requests": [exactly("r")]}, *CARD, holdings=holdings)) == ["r=right"]


def test_a_pool_with_a_problem_gives_nothing_and_is_a_reason() -> None:
    broken = Pool(driver=OURS, name="n1", problem="pool n1 of gpu.tessera.dev: 1 of 2 ResourceSlices are there")
    found = match_claims([demand({"requests": [exactly("r")]})], [broken], Holdings(), SELECTORS)
    assert isinstance(found, NoMatch)
    assert "1 of 2 ResourceSlices are there" in found.reason
    everything = demand({"requests": [exactly("r", allocationMode="All")]})
    assert isinstance(match_claims([everything], [pool(*CARD), broken], Holdings(), SELECTORS), NoMatch)


def test_a_selector_that_fails_is_a_reason_and_hides_no_other_device() -> None:
    found = match({"requests": [exactly("r", "broken")]}, *CARD)
    assert found == NoMatch(
        "claim ns/c: request r wants a device of class broken: 3 DeviceClass broken:"
        " spec.selectors[0].cel.expression: no such key: missing"
    )
    good = msgspec.structs.replace(CARD[1], attributes={f"{OURS}/missing": 1})
    assert names(match({"requests": [exactly("r", "broken")]}, *CARD[:1], good)) == ["r=left"]


def test_contradictory_constraints_end_after_a_bounded_number_of_tries() -> None:
    cards = [device(f"d{number}", card=f"card-{number}", size=number) for number in range(30)]
    rules = [{"distinctAttribute": f"{OURS}/size"}, {"matchAttribute": f"{OURS}/parentUUID", "requests": ["z"]}]
    spec = {"requests": [exactly("r", count=14), exactly("z", count=2)], "constraints": rules}
    assert "more than 50,000 tries" in match(spec, *cards).reason


def test_a_claim_of_very_many_selectors_ends_soon() -> None:
    cards = [device(f"d{number}", card=f"card-{number}") for number in range(64)]
    selectors = [{"cel": {"expression": "true" + " " * each}} for each in range(32)]
    alternatives = [{"name": f"a{each}", "deviceClassName": "any", "selectors": selectors} for each in range(8)]
    requests = [{"name": f"r{each}", "firstAvailable": alternatives} for each in range(9)]
    impossible = exactly("z", "large")
    found = match({"requests": [*requests, impossible]}, *cards)
    assert isinstance(found, NoMatch)
    assert "more than 50,000 tries" in found.reason
    with pytest.raises(ClaimRefused, match="its selectors, with those of its classes, have at most 65,536 characters"):
        demand({"requests": [{"name": f"r{each}", "firstAvailable": alternatives} for each in range(30)]})


def test_a_claim_of_expensive_selectors_ends_soon() -> None:
    ten = f"[{','.join('0' * 10)}]"
    costly = f"{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, {ten}.all(e, true)))))"
    selectors = [{"cel": {"expression": f"{costly} && {each} < 99"}} for each in range(20)]
    found = match({"requests": [exactly("r", selectors=selectors)]}, *CARD)
    assert found.reason == "claim ns/c: its selectors cost more than 1,000,000 units on a node"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            [exactly("r", "no")],
            "claim ns/c: spec.devices.requests[0].exactly.deviceClassName is no: the cluster has no",
        ),
        ([{"name": "r"}], "claim ns/c: spec.devices.requests[0] needs one of exactly and firstAvailable"),
        ([exactly("r", allocationMode="Some")], "spec.devices.requests[0].exactly.allocationMode is Some: ExactCount"),
        ([exactly("r", count=0)], "spec.devices.requests[0].exactly.count is 0: a claim has 1 to 32 devices"),
        ([exactly("r", count=20), exactly("s", count=20)], "spec.devices.requests ask for 40 devices; a claim has 32"),
        ([exactly("r", selectors=[{}])], "claim ns/c: spec.devices.requests[0].exactly.selectors[0] has no cel"),
        (
            [exactly("r", capacity={"requests": {"memory": "x"}})],
            "spec.devices.requests[0].exactly.capacity.requests.memory is no quantity",
        ),
        (
            [exactly("r", capacity={"requests": {"memory": "-100Gi"}})],
            "spec.devices.requests[0].exactly.capacity.requests.memory is -100Gi: an amount is 0 or more",
        ),
        ([exactly("r", capacity={"requests": {"memory": "9e99"}})], "the exponent is out of range"),
    ],
)
def test_a_claim_that_cannot_be_read_is_refused_with_its_field(spec: list[Any], reason: str) -> None:
    with pytest.raises(ClaimRefused) as refused:
        demand({"requests": spec})
    assert reason in str(refused.value)


def test_a_pod_with_far_too_many_claims_is_refused() -> None:
    """A shared device can be had any number of times, so nothing else ends the search."""
    claim = demand({"requests": [exactly(f"r{number}") for number in range(32)]})
    found = match_claims([claim] * 60, [pool(device("d", shared=True))], Holdings(), SELECTORS)
    assert found == NoMatch("claim ns/c: the pod's claims have 1,920 requests, too many for one pod")


def test_a_constraint_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ClaimRefused, match=r"spec\.devices\.constraints\[0\] needs one of matchAttribute"):
        demand({"requests": [exactly("r")], "constraints": [{"requests": ["r"]}]})


# -- all small cases ---------------------------------------------------------------------------------------------------

_SHARED = {f"{OURS}/memory": Capacity(value=Decimal(2), default=Decimal(1), least=Decimal(0))}


@st.composite
def _devices(draw: st.DrawFn) -> tuple[Device, ...]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        shared = draw(st.booleans())
        found.append(
            device(
                f"d{number}",
                size=draw(st.integers(1, 2)),
                card=draw(st.sampled_from("ab")),
                slots=draw(st.sets(st.integers(0, 2), max_size=2)),  # type: ignore[arg-type]  # order does not matter
                shared=shared,
                capacity=_SHARED if shared else {},
            )
        )
    return tuple(found)


def _query(draw: st.DrawFn) -> dict[str, Any]:
    query: dict[str, Any] = {"deviceClassName": draw(st.sampled_from(("any", "small", "large")))}
    if draw(st.integers(0, 5)) == 0:
        return query | {"allocationMode": "All"}
    return query | {"count": draw(st.integers(1, 2)), "adminAccess": draw(st.integers(0, 4)) == 0}


@st.composite
def _claims(draw: st.DrawFn) -> tuple[ClaimDemand, ...]:
    found = []
    for claim in range(draw(st.integers(1, 2))):
        requests: list[dict[str, Any]] = []
        for number in range(draw(st.integers(1, 2))):
            if draw(st.booleans()):
                requests.append({"name": f"r{number}", "exactly": _query(draw)})
            else:
                alternatives = [_query(draw) | {"name": f"a{each}"} for each in range(2)]
                requests.append({"name": f"r{number}", "firstAvailable": alternatives})
        rules = draw(
            st.lists(
                st.fixed_dictionaries(
                    {"requests": st.sampled_from(([], ["r0"]))},
                    optional={"matchAttribute": st.just(f"{OURS}/parentUUID")},
                ).map(lambda rule: rule if "matchAttribute" in rule else rule | {"distinctAttribute": f"{OURS}/size"}),
                max_size=2,
            )
        )
        found.append(demand({"requests": requests, "constraints": rules}, f"claim ns/c{claim}"))
    return tuple(found)


def _all_choices(claims: Sequence[ClaimDemand], devices: Sequence[Device]) -> Iterator[list[ChosenDevice]]:
    """Every way to give each request a set of devices that its selectors admit."""
    ways: list[list[list[ChosenDevice]]] = []
    for number, claim in enumerate(claims):
        for alternatives in claim.requests:
            options: list[list[ChosenDevice]] = []
            for each in alternatives:
                admitted = [
                    one
                    for one in devices
                    if all(SELECTORS.matches(text, one).matches for _, text in each.selectors)
                    and consumed_amounts(each, one) is not None
                ]
                options += [
                    [ChosenDevice(claim=number, demand=each, device=one, amounts=_amounts(each, one)) for one in chosen]
                    for chosen in (combinations(admitted, each.count or len(admitted)) if admitted else ())
                ]
            ways.append(options)
    for way in product(*ways):
        yield [each for part in way for each in part]


def _amounts(each: Any, one: Device) -> Any:
    return consumed_amounts(each, one) if one.shared and not each.admin else {}


def _is_legal(claims: Sequence[ClaimDemand], chosen: Sequence[ChosenDevice], devices: Sequence[Device]) -> bool:
    taking = [each for each in chosen if not each.demand.admin]
    alone = [each.device.id for each in taking if not each.device.shared]
    in_claim = [(each.claim, each.device.id) for each in chosen if not each.device.shared]
    if len(set(alone)) < len(alone) or len(set(in_claim)) < len(in_claim):
        return False
    used: dict[tuple[str, str], Decimal] = {}
    for one in {each.device.id: each.device for each in taking}.values():
        for key, amount in one.counters.items():
            used[key] = used.get(key, Decimal(0)) + amount
    if any(amount > 1 for amount in used.values()):
        return False
    for one in devices:
        if one.shared and sum(each.device.id == one.id for each in taking) > 2:
            return False
    for number, claim in enumerate(claims):
        for rule in claim.rules:
            values = [
                each.device.attributes[rule.attribute]
                for each in chosen
                if each.claim == number and rule.concerns(each.demand)
            ]
            if len(set(values)) != (len(values) if rule.distinct else min(len(values), 1)):
                return False
    return True


def _admin_fits(chosen: Sequence[ChosenDevice]) -> bool:
    """An admin's device is in use or could be: the search decides that in the order of the requests."""
    return not any(each.demand.admin and each.device.counters for each in chosen)


@settings(max_examples=examples(400), deadline=None)
@given(_devices(), _claims())
def test_the_search_agrees_with_all_choices(devices: tuple[Device, ...], claims: tuple[ClaimDemand, ...]) -> None:
    found = match_claims(claims, [pool(*devices)], Holdings(), SELECTORS)
    legal = [each for each in _all_choices(claims, devices) if _is_legal(claims, each, devices)]
    if isinstance(found, NoMatch):
        assert not [each for each in legal if _admin_fits(each)]
        assert found.reason
    else:
        assert _is_legal(claims, found, devices)
        assert {(each.claim, each.demand.name, each.device.id) for each in found} in [
            {(each.claim, each.demand.name, each.device.id) for each in way} for way in legal
        ]


@settings(max_examples=examples(200), deadline=None)
@given(_devices(), st.lists(_claims(), max_size=6))
def test_claims_one_after_the_other_never_get_a_device_twice(
    devices: tuple[Device, ...], rounds: list[tuple[ClaimDemand, ...]]
) -> None:
    holdings, given_devices = Holdings(), []
    for claims in rounds:
        found = match_claims(claims, [pool(*devices)], holdings, SELECTORS)
        for each in () if isinstance(found, NoMatch) else found:
            if not each.demand.admin:
                holdings.take(each.device, each.amounts)
                given_devices.append(each)
    alone = [each.device.id for each in given_devices if not each.device.shared]
    assert len(alone) == len(set(alone))
    assert all(amount <= 1 for amount in holdings.counters.values())
    assert all(sum(each.values()) <= 2 for each in holdings.consumed.values())

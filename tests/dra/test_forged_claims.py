"""Claims, classes and slices of any content, from their JSON to an answer: read, or refused with a reason."""

import re
from typing import Any

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS, ClaimSpec, DeviceClass, ResourceClaim
from tessera.dra.matching import NoMatch, match_claims
from tessera.dra.opaque_configs import ConfigRefused, settings_of
from tessera.dra.requests import ClaimRefused, read_demand
from tessera.dra.resource_slices import RESOURCE_SLICES, ResourceSlice, read_pools
from tessera.dra.selectors import DeviceSelectors
from tessera.kube.codec import ChangeLine, Codec
from tessera_lab.scheduler.state.claim_cache import read_holdings

TEXTS = st.sampled_from(
    ["", "r", "s", "r/s", "c", "d", "gpu.tessera.dev", "1", "1Gi", "-1", "1e30", "x" * 300, "\ud7ff"]
)
ODD = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), TEXTS, st.just([]), st.just({}))
EXPRESSIONS = st.sampled_from(
    ["true", "false", "1", "", "device", "device.driver == 'd'", "device.attributes['d'].a == 1", "a" * 200, "(((("]
)


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value that fits, and now and then any other."""
    return st.integers(0, 99).flatmap(lambda roll: ODD if roll == 50 else good)


def listed(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return mostly(st.lists(mostly(item), max_size=3))


def fields(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return mostly(st.fixed_dictionaries({name: mostly(each) for name, each in members.items()}))


def table(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(
        st.sampled_from(["a", "d/a", "memory", "memory-slice-0", "compute-slices"]), value, max_size=2
    )


SELECTORS = listed(fields(cel=fields(expression=EXPRESSIONS)))
TOLERATIONS = listed(fields(key=TEXTS, operator=st.sampled_from(["Exists", "Equal"]), value=TEXTS, effect=TEXTS))
CONFIG = listed(fields(requests=listed(TEXTS), opaque=fields(driver=st.just("d"), parameters=ODD), source=TEXTS))
QUERY = {
    "deviceClassName": st.just("c"),
    "selectors": st.just([]) | SELECTORS,
    "allocationMode": st.sampled_from(["All", "ExactCount"]),
    "count": st.sampled_from((1, 1, 1, 2, 0, 40)),
    "adminAccess": st.booleans(),
    "tolerations": TOLERATIONS,
    "capacity": st.just({}) | fields(requests=table(TEXTS | st.integers(0, 9))),
}
REQUEST = fields(name=TEXTS, exactly=fields(**QUERY)) | fields(
    name=TEXTS, firstAvailable=listed(fields(name=TEXTS, **QUERY))
)
RESULT = fields(request=TEXTS, driver=st.just("d"), pool=st.just("n1"), device=TEXTS, consumedCapacity=table(ODD))
CLAIM = fields(
    metadata=fields(name=TEXTS),
    spec=fields(
        devices=fields(
            requests=listed(REQUEST),
            constraints=st.just([])
            | listed(fields(requests=listed(TEXTS), matchAttribute=TEXTS))
            | listed(fields(requests=listed(TEXTS), distinctAttribute=TEXTS)),
            config=CONFIG,
        )
    ),
    status=fields(allocation=fields(devices=fields(results=listed(RESULT))), reservedFor=listed(fields(uid=TEXTS))),
)
FEW = st.sampled_from(["0", "1", "2", "1Gi"])
AMOUNT = fields(value=TEXTS | st.integers(0, 9))
DEVICE = fields(
    name=TEXTS,
    attributes=table(fields(int=st.integers(0, 1)) | fields(string=TEXTS) | fields(version=TEXTS)),
    capacity=table(
        fields(value=FEW, requestPolicy=st.none() | fields(default=FEW, validRange=fields(min=FEW, max=FEW, step=FEW)))
    ),
    consumesCounters=st.just([]) | listed(fields(counterSet=st.just("s"), counters=table(AMOUNT))),
    taints=listed(fields(key=TEXTS, value=TEXTS, effect=st.sampled_from(["NoSchedule", "None"]))),
    allowMultipleAllocations=st.booleans(),
)
SLICE = fields(
    metadata=fields(name=TEXTS),
    spec=fields(
        driver=st.just("d"),
        nodeName=st.just("n1"),
        pool=fields(name=st.just("n1"), generation=st.just(1), resourceSliceCount=st.just(1)),
        devices=listed(DEVICE),
        sharedCounters=listed(fields(name=TEXTS, counters=table(AMOUNT))),
    ),
)
CLASS = fields(metadata=fields(name=st.just("c")), spec=fields(selectors=st.just([]) | SELECTORS, config=CONFIG))


def decode(resource: Any, item: Any) -> Any:
    """The object as a watch delivers it; None for one that does not decode."""
    raw = msgspec.json.encode({"type": "ADDED", "object": item})
    line = Codec(resource.type).decode_line(raw)
    return line.object if isinstance(line, ChangeLine) else None


@settings(max_examples=examples(150), deadline=None)
@given(CLAIM, CLASS, st.lists(SLICE, max_size=2))
def test_any_objects_lead_to_an_answer(claim_item: Any, class_item: Any, slice_items: list[Any]) -> None:
    claim: ResourceClaim = decode(RESOURCE_CLAIMS, claim_item) or ResourceClaim(spec=ClaimSpec())
    found: DeviceClass = decode(DEVICE_CLASSES, class_item) or DeviceClass()
    slices: list[ResourceSlice] = [each for item in slice_items if (each := decode(RESOURCE_SLICES, item)) is not None]
    pools = read_pools(slices)
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    holdings = read_holdings(pools, results)
    try:
        demand = read_demand("claim ns/c", claim.spec, {"c": found})
    except ClaimRefused as refused:
        answer = str(refused)
    else:
        chosen = match_claims([demand], pools, holdings, DeviceSelectors())
        answer = chosen.reason if isinstance(chosen, NoMatch) else "has devices"
        configs = [(f"spec.devices.config[{number}]", each) for number, each in enumerate(claim.spec.devices.config)]
        for each in () if isinstance(chosen, NoMatch) else chosen:
            try:
                settings_of(configs, "d", each.demand.name, "gpu")
            except ConfigRefused as refused:
                answer = str(refused)
    event(re.sub(r"[0-9]+|'.*?'", "", answer)[:40])
    assert answer
    assert len(answer) < 2_000

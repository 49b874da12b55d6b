"""Any layout from any state of any model, with pods that come and go, calls that fail and processes that are killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.mig_config.conftest import Bench
from tests.support.mig_enumeration import Multiset, layouts, maximal_layouts, multisets
from tests.support.searching import examples

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.mig_config.events import (
    CallFailed,
    CallSucceeded,
    CardEvent,
    CardReadFailed,
    CreateGi,
    DestroyGi,
    EvictionAnswered,
    FenceSet,
    InstancePlace,
    InSync,
    Reset,
    SetMigMode,
    UsersUnknown,
    Wait,
)
from tessera.api.names import PodUid
from tessera.mig.geometry import Geometry, Placement
from tessera.mig.models import MODELS
from tessera.nvml.errors import InsufficientResources, InUse, NvmlError, ResetRequired, UnknownNvmlError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Every model whose placements are known.
KNOWN = [model for model in MODELS if model.table is not None]
ERRORS: list[type[NvmlError]] = [UnknownNvmlError, InUse, ResetRequired, InsufficientResources]
CALLS = [
    "create_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
    "destroy_gpu_instance",
    "set_mig_mode",
    "reset",
]
#: What draws one of several possibilities.
Draw = Callable[[st.SearchStrategy[Any]], Any]


@lru_cache(maxsize=2)
def every_layout(geometry_of: str) -> list[tuple[Placement, ...]]:
    return layouts(table(geometry_of))


@lru_cache(maxsize=2)
def every_multiset(geometry_of: str) -> list[Multiset]:
    return multisets(table(geometry_of))


def table(model: str) -> Geometry:
    return next(each.geometry for each in KNOWN if each.short_name == model)


def reaches(model: str, start: Iterable[Placement], wanted: Multiset, rng: random.Random) -> None:
    entries = list(wanted)
    rng.shuffle(entries)
    card = Bench(model)
    card.lay(start)
    card.aim(dict(entries))
    assert card.settle() == InSync()
    assert card.multiset() == dict(wanted)
    assert card.fence == frozenset()


@pytest.mark.parametrize("model", [model.short_name for model in KNOWN])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_layout_is_reached_from_any_other(model: str, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(every_layout(model)))
    wanted = data.draw(st.sampled_from(every_multiset(model)))
    reaches(model, start, wanted, random.Random(data.draw(st.integers(0, 1000))))


@pytest.mark.soak
@pytest.mark.parametrize("model", [model.short_name for model in KNOWN])
def test_every_layout_is_reached_from_the_empty_card_and_from_full_ones(model: str) -> None:
    rng = random.Random(model)
    full = maximal_layouts(table(model))
    for wanted in every_multiset(model):
        for start in [(), *rng.sample(full, min(3, len(full)))]:
            reaches(model, start, wanted, rng)


def stray_facts(card: Bench, draw: Draw) -> None:
    """Facts that come late, twice, or about what is no more."""
    place = InstancePlace("1g.5gb", draw(st.integers(0, 6)))
    call = draw(st.sampled_from([CreateGi(place), DestroyGi(place, 7), SetMigMode(False), Reset()]))
    facts: list[CardEvent] = [
        CardReadFailed("no answer", card.now + 1),
        UsersUnknown("no answer", card.now + 1),
        FenceSet(card.fence),
        EvictionAnswered(PodUid("uid-nobody"), "not now", card.now),
        CallSucceeded(call),
        CallFailed(call, draw(st.sampled_from(list(CallFailure))), "late", card.now),
    ]
    card.events.append(draw(st.sampled_from(facts)))


def something_happens(card: Bench, draw: Draw) -> None:
    match draw(
        st.sampled_from(["step", "step", "step", "die", "pod", "end", "fail", "time", "refuse", "goal", "fact"])
    ):
        case "step":
            card.step()
        case "die":
            card.kill()
        case "pod":
            free = [each for each in card.free() if each not in card.fence and not card.held(each)]
            if free:
                card.hold(f"pod-{len(card.done)}-{len(card.users)}", draw(st.sampled_from(free)))
        case "end":
            names = sorted({each.name for held in card.users.values() for each in held})
            if names:
                card.ends(draw(st.sampled_from(names)))
        case "fail":
            card.cards.fail(draw(st.sampled_from(CALLS)), draw(st.sampled_from(ERRORS)))
        case "time":
            card.now += draw(st.floats(0.0, 5.0))
        case "refuse":
            card.refusals = {f"pod-{number}": "not now" for number in range(7)}
        case "goal":
            card.aim(dict(draw(st.sampled_from(every_multiset("A100-40GB")))), mig=True)
        case "fact":
            stray_facts(card, draw)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_pods_failures_and_deaths_in_any_order_change_nothing_about_the_end(data: st.DataObject) -> None:
    draw: Draw = data.draw
    mig = draw(st.booleans())
    card = Bench("A100-40GB", mig=mig, passthrough=draw(st.booleans()), may_evict=draw(st.booleans()))
    start = draw(st.sampled_from(every_layout("A100-40GB"))) if mig else ()
    for number, device in enumerate(card.lay(start)):
        if draw(st.booleans()):
            card.hold(f"pod-{number}", device)
    wanted = dict(draw(st.sampled_from(every_multiset("A100-40GB"))))
    on = draw(st.booleans())
    card.aim(wanted if on else {}, mig=on)
    for _ in range(draw(st.integers(0, 30))):
        something_happens(card, draw)
    card.aim(wanted if on else {}, mig=on)
    card.refusals.clear()
    card.cards.heal()
    card.users.clear()
    assert card.settle() == InSync()
    assert card.multiset() == (wanted if on else {})
    assert card.seen().mig_enabled == on
    assert card.fence == frozenset()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_pod_ever_loses_its_device_and_the_most_instances_stay(data: st.DataObject) -> None:
    card = Bench("A100-40GB")
    held = {}
    for number, device in enumerate(card.lay(data.draw(st.sampled_from(every_layout("A100-40GB"))))):
        if data.draw(st.booleans()):
            card.hold(f"pod-{number}", device)
            held[f"pod-{number}"] = device
    card.aim(dict(data.draw(st.sampled_from(every_multiset("A100-40GB")))))
    step = card.run()
    assert set(held.values()) <= set(card.devices())
    waited = {name for name, device in held.items() if device in card.fence}
    assert isinstance(step, Wait) == bool(waited)
    for name in waited:
        card.ends(name)
    assert card.settle() == InSync()
    assert {device for name, device in held.items() if name not in waited} <= set(card.devices())

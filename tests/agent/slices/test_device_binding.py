"""Each device ID is bound to one slice."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.agent.slices.container_slices import TooManyDevices, bind_devices, preferred_devices
from tessera.kubelet.interfaces import PreferredRequest

ONES = [SlicePosition("GPU-a", "1g.5gb", start) for start in range(7)]
THREES = [SlicePosition("GPU-a", "3g.20gb", 0), SlicePosition("GPU-a", "3g.20gb", 4)]


def ids(*positions: SlicePosition) -> list[str]:
    return [position.device_id for position in positions]


def test_a_device_means_the_slice_at_its_own_position_if_that_is_the_pods() -> None:
    assert bind_devices(ids(ONES[3], ONES[1]), [ONES[1], ONES[3]], {}) == {
        ONES[3].device_id: ONES[3],
        ONES[1].device_id: ONES[1],
    }


def test_another_device_means_another_slice_of_the_same_profile() -> None:
    assert bind_devices(ids(ONES[5]), [THREES[0], ONES[1]], {}) == {ONES[5].device_id: ONES[1]}


def test_no_device_takes_the_slice_that_another_one_names() -> None:
    assert bind_devices(ids(ONES[0], ONES[2]), [ONES[2], ONES[4]], {}) == {
        ONES[0].device_id: ONES[4],
        ONES[2].device_id: ONES[2],
    }


def test_a_binding_lasts() -> None:
    known = {ONES[5].device_id: ONES[1]}
    assert bind_devices(ids(ONES[5], ONES[1]), [ONES[1], ONES[2]], known) == {
        ONES[5].device_id: ONES[1],
        ONES[1].device_id: ONES[2],
    }


def test_a_binding_to_a_slice_that_was_moved_is_made_anew() -> None:
    assert bind_devices(ids(ONES[5]), [ONES[2]], {ONES[5].device_id: ONES[1]}) == {ONES[5].device_id: ONES[2]}


def test_more_devices_than_promised_are_refused() -> None:
    with pytest.raises(TooManyDevices, match=r"promised 1 slices of 1g.5gb"):
        bind_devices(ids(ONES[0], ONES[1]), [ONES[0], *THREES], {})


@given(
    slices=st.lists(st.sampled_from(ONES + THREES), unique=True),
    picked=st.permutations(ONES + THREES),
    data=st.data(),
)
def test_no_slice_is_ever_used_twice(
    slices: list[SlicePosition], picked: list[SlicePosition], data: st.DataObject
) -> None:
    known: dict[str, SlicePosition] = {}
    for profile in ("1g.5gb", "3g.20gb"):
        count = sum(each.profile == profile for each in slices)
        held = [each for each in picked if each.profile == profile][:count]
        first = data.draw(st.integers(0, len(held)))
        before = dict(known)
        known = bind_devices(ids(*held[:first]), slices, known)
        known = bind_devices(ids(*held), slices, known)
        assert before.items() <= known.items()
    assert sorted(known.values()) == sorted(slices)
    assert all(parse_device_id(device).profile == slice_.profile for device, slice_ in known.items())


def test_promised_positions_are_preferred_oldest_promise_first() -> None:
    request = PreferredRequest(available=tuple(ids(*ONES)), must_include=(), size=2)
    assert preferred_devices(request, [ONES[6], ONES[4], ONES[2]]) == ids(ONES[6], ONES[4])


def test_devices_that_must_be_included_come_before_promised_ones() -> None:
    request = PreferredRequest(available=tuple(ids(*ONES)), must_include=(ONES[0].device_id,), size=2)
    assert preferred_devices(request, [ONES[6], ONES[4]]) == ids(ONES[0], ONES[6])


def test_without_enough_promises_other_devices_fill_up() -> None:
    request = PreferredRequest(available=tuple(ids(ONES[1], ONES[2], ONES[3])), must_include=(), size=3)
    assert preferred_devices(request, [ONES[6], ONES[3]]) == ids(ONES[3], ONES[1], ONES[2])


def test_for_a_position_that_is_no_device_another_of_its_card_is_preferred() -> None:
    """A card has one device for its media engines, wherever their slice starts."""
    engines = {card: SlicePosition(f"GPU-{card}", "1g.5gb.me", 0) for card in "abc"}
    request = PreferredRequest(available=tuple(ids(*engines.values())), must_include=(), size=2)
    promised = [SlicePosition("GPU-c", "1g.5gb.me", 4), SlicePosition("GPU-b", "1g.5gb.me", 0)]
    assert preferred_devices(request, promised) == ids(engines["b"], engines["c"])
    assert preferred_devices(msgspec.structs.replace(request, size=1), promised[:1]) == ids(engines["c"])
    assert bind_devices(ids(engines["c"]), promised[:1], {}) == {engines["c"].device_id: promised[0]}


@pytest.mark.parametrize("text", ["", "GPU-a", "GPU-a:1g.5gb", "GPU-a:1g.5gb:x", ":1g.5gb:0", "GPU-a::0", "MIG-abc"])
def test_other_texts_are_no_device_ids(text: str) -> None:
    with pytest.raises(ValueError, match="GPU-UUID:PROFILE:START"):
        parse_device_id(text)


def test_device_ids_survive_the_way_there_and_back() -> None:
    position = SlicePosition("GPU-42db43a1-526e-626d-ff2d-456bf26d9df0", "1g.24gb.me.all", 9)
    assert parse_device_id(position.device_id) == position
    assert len(position.device_id) <= 63

"""MIG layouts are read strictly, and every file that mig-parted reads is read too."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.mig_layouts import (
    LayoutEntry,
    MigCard,
    canonical_profile,
    parse_layouts,
    parse_layouts_document,
    resolve_targets,
)
from tessera.api.problems import FileRefused

ARTICLE = """\
version: v1
mig-configs:
  disabled:
  - devices: all
    mig-enabled: false

  # A100-40GB
  2x2g.10gb-3x1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 3
      "2g.10gb": 2
"""
A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


def card(index: int, product: str = A100, pci: int = 0x20B010DE, board: int = 0, *, mig: bool = True) -> MigCard:
    return MigCard(
        uuid=f"GPU-{index}",
        index=index,
        product=product,
        pci_device_id=pci,
        pci_subsystem_id=board,
        mig_capable=mig,
    )


def entries(*items: dict[str, Any]) -> tuple[LayoutEntry, ...]:
    return parse_layouts_document({"version": "v1", "mig-configs": {"x": list(items)}}).layouts["x"]


def cut(devices: Any = "all", **counts: int) -> dict[str, Any]:
    profiles = {"ones": "1g.5gb", "twos": "2g.10gb", "threes": "3g.20gb"}
    named = {profiles[name]: count for name, count in counts.items()}
    return {"devices": devices, "mig-enabled": True, "mig-devices": named}


OFF = {"devices": "all", "mig-enabled": False}


def refused(document: Any) -> list[str]:
    with pytest.raises(FileRefused) as error:
        parse_layouts_document(document)
    return [str(each) for each in error.value.problems]


def test_the_layouts_of_the_article() -> None:
    layouts = parse_layouts(ARTICLE).layouts
    assert list(layouts) == ["disabled", "2x2g.10gb-3x1g.5gb"]
    (entry,) = layouts["2x2g.10gb-3x1g.5gb"]
    assert entry.counts == {"1g.5gb": 3, "2g.10gb": 2}
    targets = resolve_targets((entry,), [card(index) for index in range(4)])
    assert [each.counts for each in targets.targets] == [entry.counts] * 4
    assert targets.notices == ()


@pytest.mark.parametrize(
    ("document", "problems"),
    [
        ({"version": "v2", "mig-configs": {"x": [OFF]}}, ['version: "v2" is not known; write "v1"']),
        ({"version": "v2"}, ['version: "v2" is not known; write "v1"']),
        ({"mig-configs": {"x": [OFF]}}, ['version: missing; write version: "v1"']),
        ({"bogus": 1, "version": "v1", "mig-configs": {"x": [OFF]}}, ["bogus: unknown; the keys here are"]),
        ({"version": "v1", "mig-config": {"x": [OFF]}}, ["mig-config: unknown; did you mean mig-configs?"]),
        ({"version": "v1", "mig-configs": {}}, ["mig-configs: is empty"]),
        ({"version": "v1", "mig-configs": {"x": []}}, ["mig-configs.x: is empty; write at least one entry"]),
        ({"version": "v1", "mig-configs": {"all-1g.5gb": OFF}}, ['mig-configs["all-1g.5gb"]: must be a list']),
    ],
)
def test_a_file_that_is_wrong_is_refused(document: Any, problems: list[str]) -> None:
    found = refused(document)
    assert len(found) == len(problems)
    assert all(each.startswith(start) for each, start in zip(found, problems, strict=True))


@pytest.mark.parametrize("text", ["", "version: v1"])
def test_a_file_without_layouts_is_read_and_it_is_said(text: str) -> None:
    layouts = parse_layouts(text)
    assert layouts.layouts == {}
    assert "no layout" in layouts.notices[0].text


@pytest.mark.parametrize(
    "item",
    [
        cut(ones=2),
        cut([0, 1, 2, 3], ones=2),
        {"device-filter": "MODEL"} | cut(ones=2),
        {"device-filter": ["MODEL1", "MODEL2"]} | cut(ones=2),
        OFF,
        OFF | {"mig-devices": {}},
        {"devices": [0, 1, 2, 3], "mig-enabled": False},
        {"devices": "all", "mig-enabled": True, "mig-devices": {}},
        {"devices": "all", "mig-enabled": True, "mig-devices": {"0g.0gb": 100}},
        {"device-filter": "0x20B010DE:0x134F10DE"} | OFF,
    ],
)
def test_entries_that_are_accepted(item: dict[str, Any]) -> None:
    (entry,) = entries(item)
    assert entry.mig_enabled is item["mig-enabled"]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"mig-enabled": True, "mig-devices": {"1g.5gb": 2}}, "devices: missing"),
        ({"devices": "all", "mig-devices": {"1g.5gb": 2}}, "mig-enabled: missing"),
        ({"devices": "all", "mig-enabled": True}, "mig-devices: missing; write the profiles"),
        ({"devices": "all", "mig-enabled": "yes"}, 'mig-enabled: must be true or false, not "yes"'),
        (cut("bogus", ones=1), 'devices: must be "all" or a list of indexes, not "bogus"'),
        (cut({}, ones=1), "devices: must be"),
        (cut(0, ones=1), "devices: must be"),
        (cut([-1], ones=1), "devices[0]: must be 0 or more, not -1"),
        (cut(["0"], ones=1), "devices[0]: must be a whole number"),
        (cut(ones=-1), 'mig-devices["1g.5gb"]: must be 0 or more, not -1'),
        (cut(ones=0, twos=0), "mig-devices: has only counts of 0"),
        (OFF | {"mig-devices": {"1g.5gb": 1}}, "mig-devices: must be left out where mig-enabled is false"),
        (cut(ones=1) | {"mig-devices": {"bogus": 2}}, "mig-devices.bogus: is no MIG profile; the form is"),
        (cut(ones=1) | {"mig-devices": {"1g.5gb.me": 1}}, 'mig-devices["1g.5gb.me"]: is no MIG profile; the form is'),
        (OFF | {"bogus": 1}, "bogus: unknown"),
        (OFF | {"device-filter": {}}, "device-filter: must be a list"),
        (
            OFF | {"device-filter": 0x20B010DE},
            'device-filter: must be text, not a number; put the PCI id in quotes: "0x20',
        ),
        (OFF | {"device-filter": [5]}, 'device-filter[0]: must be text, not a number; put the PCI id in quotes: "0x0'),
        (OFF | {"device-filter": ["0x20B010DE:x"]}, 'device-filter[0]: "0x20B010DE:x" is no PCI id'),
        (OFF | {"device-filter": "0x1:0x2:0x3"}, 'device-filter: "0x1:0x2:0x3" is no PCI id'),
        (OFF | {"device-filter": "0xZZ"}, 'device-filter: "0xZZ" is no PCI id'),
    ],
)
def test_entries_that_are_refused_with_their_path(item: dict[str, Any], problem: str) -> None:
    (found,) = refused({"version": "v1", "mig-configs": {"x": [OFF, item]}})
    assert found.startswith(f"mig-configs.x[1].{problem}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1g.5gb", "1g.5gb"),
        ("3c.3g.20gb", "3g.20gb"),
        ("1c.3g.20gb", "1c.3g.20gb"),
        ("1g.24gb+me.all", "1g.24gb+me.all"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("1g.5gb+me,gfx", "1g.5gb+me,gfx"),
    ],
)
def test_profile_names(text: str, name: str) -> None:
    assert canonical_profile(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", "1g", "5gb", "g.5gb", "1g.5GB", "4c.3g.20gb"),
        *("1g.5gb+", "1g.5gb+me-gfx", "1g.5gb+1me", "1g.5gb+.me", "1g.5gb+me.", "1g.5gb +me", "1g.5gb+me,me"),
    ],
)
def test_what_is_no_profile_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"MIG profile|twice"):
        canonical_profile(text)


def test_the_spelling_of_resources_is_explained() -> None:
    with pytest.raises(ValueError, match=r"did you mean 1g\.5gb\+me\?"):
        canonical_profile("1g.5gb.me")


def test_the_same_profile_under_two_names_is_added_up() -> None:
    (entry,) = entries(cut() | {"mig-devices": {"3g.20gb": 1, "3c.3g.20gb": 1, "1g.5gb": 0}})
    assert entry.counts == {"3g.20gb": 2}


def test_a_later_entry_counts_for_the_cards_that_it_names() -> None:
    layout = entries(OFF, cut([1, 2], ones=7), cut([2], threes=2))
    assert [dict(each.counts) for each in resolve_targets(layout, [card(n) for n in range(3)]).targets] == [
        {},
        {"1g.5gb": 7},
        {"3g.20gb": 2},
    ]


@pytest.mark.parametrize(
    ("filters", "matches"),
    [
        ("0x20B010DE", True),
        ("0x20b010de", True),
        ("0x20B510DE", False),
        (["0x20B510DE", "0x20B010DE"], True),
        ("0x20B010DE:0x134F10DE", True),
        ("0x20B010DE:0x144E10DE", False),
        ("A100-SXM4-40GB", True),
        ("NVIDIA A100-SXM4-40GB", True),
        ("a100-40gb", True),
        ("A100-SXM4-80GB", False),
        ("", True),
        ([], True),
    ],
)
def test_filters_tell_models_and_boards_apart(filters: Any, matches: bool) -> None:
    (entry,) = entries(OFF | {"device-filter": filters})
    assert entry.selects(card(0, board=0x134F10DE)) is matches


def test_a_filter_for_a_board_does_not_match_an_unknown_one() -> None:
    (entry,) = entries(OFF | {"device-filter": "0x20B010DE:0x134F10DE"})
    assert not entry.selects(card(0))
    (zero,) = entries(OFF | {"device-filter": "0x20B010DE:0x00000000"})
    assert zero.selects(card(0))


def test_a_filter_that_can_match_nothing_is_told() -> None:
    item = OFF | {"device-filter": ["A100-40GB", "TITAN-9000"]}
    layouts = parse_layouts_document({"version": "v1", "mig-configs": {"x": [item]}})
    (notice,) = layouts.notices
    assert notice.path == "mig-configs.x[0].device-filter"
    assert notice.text.startswith('"TITAN-9000" is no PCI id and no model')


@pytest.mark.parametrize("name", ["dynamic", "a b", "x" * 64, "-x"])
def test_a_name_that_no_label_can_choose_is_told(name: str) -> None:
    layouts = parse_layouts_document({"version": "v1", "mig-configs": {name: [OFF]}})
    assert "cannot be chosen" in layouts.notices[0].text


def test_cards_without_mig_are_passed_over_by_all_and_refused_by_index() -> None:
    cards = [card(0), card(1, T4, 0x1EB810DE, mig=False)]
    targets = resolve_targets(entries(cut(ones=7)), cards)
    assert [each.card.index for each in targets.targets] == [0]
    assert "Tesla T4 has no MIG" in targets.notices[0].text
    with pytest.raises(FileRefused, match=r"x\[0\]\.devices: GPU 1 \(Tesla T4\) has no MIG"):
        resolve_targets(entries(cut([0, 1], ones=7)), cards)
    assert resolve_targets(entries(OFF | {"devices": [1]}), cards).targets == ()


def test_cards_that_no_entry_names_and_entries_that_name_no_card_are_told() -> None:
    targets = resolve_targets(entries(cut([0, 7], ones=7)), [card(0), card(1)])
    assert [str(each) for each in targets.notices] == [
        "GPU 1: no entry of the layout names it; it is left as it is",
        "mig-configs.x[0].devices: this node has no GPU 7",
    ]


def test_parts_of_gpu_instances_are_refused_when_they_are_asked_for() -> None:
    layout = entries(cut() | {"mig-devices": {"1c.3g.20gb": 3}})
    with pytest.raises(FileRefused, match=r'mig-devices\["1c\.3g\.20gb"\]: .*write 3g\.20gb'):
        resolve_targets(layout, [card(0), card(1)])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["all", "v1", "1g.5gb", "0x1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["devices", "mig-enabled", "mig-devices", "device-filter", "1g.5gb"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_any_document_is_read_or_refused_with_reasons(document: Any) -> None:
    with suppress(FileRefused):
        parse_layouts(json.dumps({"version": "v1", "mig-configs": {"a": document, "b": [document]}}))

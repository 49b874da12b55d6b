"""The layouts that a node knows without a file."""

import pytest

from tessera.api.mig_layouts import (
    LayoutCardModel,
    MigCard,
    generated_layouts,
    make_named_layout,
    resolve_targets,
)
from tessera.mig.layout_planning import is_feasible
from tessera.mig.models import MODELS, model_by_short_name


def kind(name: str) -> LayoutCardModel:
    model = model_by_short_name(name)
    return LayoutCardModel(int(model.pci_device_ids[0], 16) << 16 | 0x10DE, model.geometry)


def counts(name: str, *models: str) -> dict[int, dict[str, int]]:
    """The layout's number of instances by profile and card index, for a node with one card of each model."""
    kinds = [kind(model) for model in models]
    cards = [
        MigCard(uuid=f"GPU-{n}", index=n, product=models[n], pci_device_id=each.pci_device_id)
        for n, each in enumerate(kinds)
    ]
    return {
        each.card.index: dict(each.counts) for each in resolve_targets(generated_layouts(kinds)[name], cards).targets
    }


def test_the_layouts_of_one_model() -> None:
    assert list(generated_layouts([kind("A100-40GB")])) == [
        "all-disabled",
        "all-enabled",
        "all-1g.5gb",
        "all-1g.5gb.me",
        "all-1g.10gb",
        "all-2g.10gb",
        "all-3g.20gb",
        "all-4g.20gb",
        "all-7g.40gb",
        "all-balanced",
    ]


@pytest.mark.parametrize(
    ("name", "model", "wanted"),
    [
        ("all-1g.5gb", "A100-40GB", {"1g.5gb": 7}),
        ("all-1g.5gb.me", "A100-40GB", {"1g.5gb+me": 1}),
        ("all-2g.10gb", "A100-40GB", {"2g.10gb": 3}),
        ("all-balanced", "A100-40GB", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        ("all-balanced", "H100-80GB", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        ("all-balanced", "A30", {"1g.6gb": 2, "2g.12gb": 1}),
        ("all-balanced", "RTX-PRO-6000", {"1g.24gb": 2, "2g.48gb": 1}),
        ("all-1g.24gb-me", "RTX-PRO-6000", {"1g.24gb-me": 4}),
        ("all-disabled", "A30", {}),
    ],
)
def test_what_a_name_means(name: str, model: str, wanted: dict[str, int]) -> None:
    assert counts(name, model) == {0: wanted}


def test_a_node_of_several_models_is_told_apart_by_pci_id() -> None:
    mixed = ("A100-40GB", "A100-80GB", "A30")
    assert counts("all-1g.10gb", *mixed) == {0: {"1g.10gb": 4}, 1: {"1g.10gb": 7}}
    assert set(counts("all-balanced", *mixed)) == {0, 1, 2}
    assert (
        generated_layouts([kind("A30"), kind("A100-40GB")])["all-balanced"]
        == (generated_layouts([kind("A100-40GB"), kind("A30")])["all-balanced"])
    )


@pytest.mark.parametrize("model", [model.short_name for model in MODELS if model.table])
def test_every_generated_layout_fits_its_card(model: str) -> None:
    geometry = model_by_short_name(model).geometry
    for entries in generated_layouts([LayoutCardModel(0, geometry)]).values():
        assert all(is_feasible(geometry, entry.counts) for entry in entries)


@pytest.mark.parametrize(
    ("name", "model", "wanted"),
    [
        ("7x1g.5gb", "A100-40GB", {"1g.5gb": 7}),
        ("2x2g.10gb-3x1g.5gb", "A100-40GB", {"2g.10gb": 2, "1g.5gb": 3}),
        ("1x1g.5gb.me-1x3g.20gb", "A100-40GB", {"1g.5gb+me": 1, "3g.20gb": 1}),
        ("1x1g.5gb-1x1g.5gb", "A100-40GB", {"1g.5gb": 2}),
        ("2x1g.24gb-me-1x2g.48gb", "RTX-PRO-6000", {"1g.24gb-me": 2, "2g.48gb": 1}),
    ],
)
def test_a_name_may_say_itself_what_cards_are_cut_into(name: str, model: str, wanted: dict[str, int]) -> None:
    entries = make_named_layout(name, [kind(model)])
    assert entries is not None
    ((entry),) = entries
    assert (entry.counts, entry.devices, entry.filters) == (wanted, None, ())


@pytest.mark.parametrize("name", ["7x1g.12gb", "1g.5gb", "x1g.5gb", "0x1g.5gb", "7x1g.5gb-", "all-1g.5gb", "slice-7"])
def test_a_name_that_says_nothing_for_these_cards_is_none(name: str) -> None:
    assert make_named_layout(name, [kind("A100-40GB")]) is None


def test_of_several_models_those_with_all_of_the_profiles_are_meant() -> None:
    entries = make_named_layout("2x1g.6gb", [kind("A30"), kind("A100-40GB")])
    assert entries is not None
    assert [[each.device for each in entry.filters] for entry in entries] == [[kind("A30").pci_device_id]]

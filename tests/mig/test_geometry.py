"""A card's table answers by name, resource and alias, and can be built from what hardware or an object reports."""

import msgspec
import pytest

from tessera.mig.geometry import Geometry, GpuModel, MigUnsupported, PlacementsUnknown, UnknownProfileError
from tessera.mig.models import MODELS, WHOLE_MODELS, model_by_product, model_by_short_name

A100 = model_by_short_name("A100-40GB").geometry


def test_profiles_are_found_in_every_spelling() -> None:
    assert A100.profile("1g.5gb+me") is A100.profile("1g.5gb.me")
    assert A100.profile("1g.5gb+me").resource == "nvidia.com/mig-1g.5gb.me"


def test_a_typing_error_is_answered_with_what_exists_and_what_was_meant() -> None:
    with pytest.raises(UnknownProfileError, match=r'did you mean "3g.20gb"') as caught:
        A100.profile("3g.20g")
    assert caught.value.known == A100.names


def test_other_names_for_one_profile_lead_to_it() -> None:
    assert model_by_short_name("GB200").geometry.profile("7g.189gb").name == "7g.186gb"
    assert model_by_short_name("GB200").geometry.profile("1g.24gb.me").name == "1g.23gb+me"
    assert model_by_short_name("A100-80GB").geometry.profile("7g.79gb").name == "7g.80gb"


@pytest.mark.parametrize("model", [one for one in MODELS if one.table], ids=lambda one: one.short_name)
def test_a_table_rebuilt_from_its_placements_is_the_same(model: GpuModel) -> None:
    geometry = model.geometry
    rows = {row.spelling: [(start, row.size) for start in row.starts] for row in geometry.profiles}
    ids = {row.spelling: row.gi_profile_id for row in geometry.profiles if row.gi_profile_id is not None}
    rebuilt = Geometry.from_placements(geometry.family, rows, ids)
    for row, again in zip(geometry.profiles, rebuilt.profiles, strict=True):
        assert (row.name, row.starts, row.size, row.max_count) == (
            again.name,
            again.starts,
            again.size,
            again.max_count,
        )
        assert (row.gi_profile_index, row.gi_profile_id) == (again.gi_profile_index, again.gi_profile_id)
    assert rebuilt.slots == geometry.slots


def test_a_table_is_checked() -> None:
    with pytest.raises(ValueError, match="no profiles"):
        Geometry.from_profiles("card", [])
    with pytest.raises(ValueError, match="leave the 4 slots"):
        Geometry.from_profiles("card", A100.profiles, slots=4)
    with pytest.raises(ValueError, match="stands twice"):
        Geometry.from_profiles("card", [A100.profiles[0], A100.profiles[0]])
    with pytest.raises(ValueError, match="needs one size"):
        Geometry.from_placements("card", {"1g.5gb": [(0, 1), (2, 2)]})


def test_ids_of_the_driver_and_of_nvidia_smi() -> None:
    ids = {row.name: (row.gi_profile_index, row.gi_profile_id) for row in A100.profiles}
    assert ids == {
        "1g.5gb": (0, 19),
        "1g.5gb+me": (7, 20),
        "1g.10gb": (9, 15),
        "2g.10gb": (1, 14),
        "3g.20gb": (2, 9),
        "4g.20gb": (3, 5),
        "7g.40gb": (4, 0),
    }


def test_no_table_lets_instances_exceed_what_starts_allow() -> None:
    for model in MODELS:
        for row in model.table.profiles if model.table else ():
            assert row.max_count == (1 if row.media else row.fits_by_starts())


def test_models_are_found_by_short_name_product_and_label() -> None:
    assert model_by_short_name("a100-sxm4-40gb").product_name == "NVIDIA A100-SXM4-40GB"
    found = [model_by_product(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3")]
    assert found == [model_by_short_name("H100-80GB")] * 2
    assert model_by_product("Tesla-T4") == model_by_short_name("t4")
    assert model_by_product("NVIDIA A2") is None
    with pytest.raises(ValueError, match=r'did you mean "A100-40GB".*RTX-PRO-6000'):
        model_by_short_name("A100-40B")


def test_names_lead_to_one_model_each() -> None:
    short = [name.casefold() for one in (*MODELS, *WHOLE_MODELS) for name in (one.short_name, *one.other_short_names)]
    products = [name for one in (*MODELS, *WHOLE_MODELS) for name in one.product_names]
    pci = [device for one in (*MODELS, *WHOLE_MODELS) for device in one.pci_device_ids]
    assert all(len(set(names)) == len(names) for names in (short, products, pci))


@pytest.mark.parametrize("name", ["RTX-PRO-5000", "RTX-PRO-4500", "Thor"])
def test_a_model_of_unpublished_placements_is_known_and_refuses_planning(name: str) -> None:
    model = model_by_short_name(name)
    assert model.profile_names
    with pytest.raises(PlacementsUnknown, match="reads the table from NVML at run time"):
        _ = model.geometry


@pytest.mark.parametrize("name", ["T4", "V100", "L40S"])
def test_a_card_without_mig_is_known_and_refuses_planning(name: str) -> None:
    model = model_by_short_name(name)
    assert not model.mig_capable
    with pytest.raises(MigUnsupported, match="has no MIG, so it cannot be cut"):
        _ = model.geometry


def test_a_profile_reported_once_although_more_would_fit_is_held_to_one() -> None:
    rows = [msgspec.structs.replace(row, max_count=1) if row.name == "2g.10gb" else row for row in A100.profiles]
    once = Geometry.from_profiles("card", rows)
    two = once.profile("2g.10gb")
    assert once.claim(two, 0) & once.claim(two, 2)
    assert not once.claim(two, 0) & once.claim(once.profile("1g.5gb"), 2)

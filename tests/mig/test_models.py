"""Boards by PCI id and by product name, each with the table of its memory."""

from collections import Counter

import pytest

from tessera.mig.models import MODELS, WHOLE_MODELS, model_by_product, model_by_short_name


@pytest.mark.parametrize(
    ("pci", "product", "profiles"),
    [
        ("20B3", "NVIDIA A100-SXM-64GB", "1g.8gb 1g.8gb+me 1g.16gb 2g.16gb 3g.32gb 4g.32gb 7g.64gb"),
        ("20B8", "NVIDIA A100X", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("20B9", "NVIDIA A30X", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
        ("20F0", "NVIDIA A100-PG506-207", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("20F2", "NVIDIA A100-PG506-217", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("2313", "NVIDIA H100 CNX", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("2336", "NVIDIA H100 80GB HBM3", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("2339", "NVIDIA H100", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
    ],
)
def test_a_board_has_the_profiles_of_its_memory(pci: str, product: str, profiles: str) -> None:
    (model,) = [each for each in MODELS if pci in each.pci_device_ids]
    assert model_by_product(product) is model
    assert set(model.profile_names) == set(profiles.split())


def test_h100_as_people_write_it_is_the_board_of_80_gb() -> None:
    assert model_by_short_name("H100").memory_mib == 81559
    assert model_by_short_name("H100-SXM5-94GB").product_name == "NVIDIA H100"


def test_no_pci_id_and_no_name_means_two_boards() -> None:
    every = (*MODELS, *WHOLE_MODELS)
    for values in (
        (pci for model in every for pci in model.pci_device_ids),
        (name for model in every for name in model.product_names),
        (name.casefold() for model in every for name in (model.short_name, *model.other_short_names)),
    ):
        assert [value for value, count in Counter(values).items() if count > 1] == []

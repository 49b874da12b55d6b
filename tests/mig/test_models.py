"""Boards by PCI id and by product name, each with the table of its memory."""

from collections import Counter

import pytest

from tessera.api.nodes.node_cards import COUNT_LABEL, count_label, product_label
from tessera.mig.geometry import GpuModel
from tessera.mig.models import (
    MODELS,
    WHOLE_MODELS,
    model_by_product,
    model_by_short_name,
    suggest_model,
    suggest_profile,
)


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


#: What nodes and nvidia-smi call a card, and the model that it is.
NAMES = [
    ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
    ("NVIDIA-GH200-480GB", "GH200-96GB"),
    ("NVIDIA-B300-SXM6-AC", "B300"),
    ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
    ("A100-SXM4-40GB", "A100-40GB"),  # drivers before R470
    ("RTX PRO 6000 Server Edition", "RTX-PRO-6000"),
    ("RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
    ("nvidia-h100", "H100-SXM5-94GB"),  # NVML's name of that board
    ("NVIDIA-A30-SHARED", "A30"),
    ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-40GB"),
    ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me-SHARED", "A100-40GB"),
    ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "H100-80GB"),
    ("Tesla-T4-SHARED", "T4"),
]


@pytest.mark.parametrize(("text", "model"), NAMES)
def test_a_model_is_found_by_each_name_that_a_node_shows(text: str, model: str) -> None:
    assert model_by_short_name(text).short_name == model
    assert suggest_model(text) == []


SUFFIXES = [(), ("SHARED",), ("MIG-INVALID",), ("MIG-1g.5gb",), ("MIG-1g.24gb.me.all", "SHARED"), ("MIG-4g.96gb.gfx",)]


@pytest.mark.parametrize("suffixes", SUFFIXES)
@pytest.mark.parametrize("model", [*MODELS, *WHOLE_MODELS], ids=lambda model: model.short_name)
def test_every_label_that_tessera_writes_is_read_again(model: GpuModel, suffixes: tuple[str, ...]) -> None:
    for product in model.product_names:
        assert model_by_short_name(product) is model
        assert model_by_short_name(product_label(product, *suffixes)) is model
        assert model_by_short_name(count_label(product).removeprefix(COUNT_LABEL)) is model


@pytest.mark.parametrize(
    ("model", "name", "meant"),
    [
        ("GB200", "1g.24gb", "1g.23gb"),  # not 1g.47gb, whose spelling is as close
        ("GB200", "7g.189gb", "7g.186gb"),
        ("A100-80GB", "7g.79gb", "7g.80gb"),
        ("A100-40GB", "3g.20g", "3g.20gb"),
        ("A100-40GB", "nothing", None),
    ],
)
def test_another_name_of_a_profile_is_known_and_a_mistyped_one_is_guessed(
    model: str, name: str, meant: str | None
) -> None:
    assert suggest_profile(name, model_by_short_name(model).profile_names) == meant

"""The file of layouts that an installation brings: NVIDIA's names, right on every model, alone and beside others."""

import pytest

from tessera.api.mig_layouts import (
    LayoutCardModel,
    MigCard,
    generated_layouts,
    parse_layouts,
    resolve_targets,
)
from tessera.controller.defaults import default_layouts
from tessera.limits import MIG_LAYOUTS
from tessera.mig.geometry import GpuModel
from tessera.mig.layout_planning import is_feasible
from tessera.mig.models import MODELS, model_by_short_name

FILE = parse_layouts(default_layouts())
CUTTABLE = [model for model in MODELS if model.table is not None]
#: The names in the default file of NVIDIA's MIG manager (mig-parted, config-default.yaml of 2026).
NVIDIA = """
all-disabled all-enabled all-balanced all-1g.5gb all-1g.5gb.me all-2g.10gb all-3g.20gb all-4g.20gb all-7g.40gb
all-1g.24gb.gfx all-1g.24gb.me.all all-1g.24gb-me all-2g.48gb all-2g.48gb.gfx all-2g.48gb.me.all all-2g.48gb-me
all-4g.96gb all-4g.96gb.gfx all-1g.10gb all-1g.10gb.me all-1g.20gb all-2g.20gb all-3g.40gb all-4g.40gb all-7g.80gb
all-1g.6gb all-1g.6gb.me all-2g.12gb all-2g.12gb.me all-4g.24gb all-1g.12gb all-1g.12gb.me all-1g.24gb all-2g.24gb
all-3g.47gb all-4g.47gb all-7g.94gb all-3g.48gb all-4g.48gb all-7g.96gb all-1g.18gb all-1g.18gb.me all-1g.23gb
all-1g.23gb.me all-1g.35gb all-2g.35gb all-3g.71gb all-4g.71gb all-7g.141gb all-1g.36gb all-1g.45gb all-1g.47gb
all-2g.36gb all-2g.45gb all-2g.47gb all-3g.72gb all-3g.90gb all-3g.95gb all-4g.72gb all-4g.90gb all-4g.95gb
all-7g.144gb all-7g.180gb all-7g.189gb
"""


def card(model: GpuModel, index: int = 0, *, product: str = "", pci: str = "") -> MigCard:
    return MigCard(
        uuid=f"GPU-{index}",
        index=index,
        product=product or model.product_name,
        pci_device_id=int(f"{pci or model.pci_device_ids[0]}10DE", 16),
    )


def test_it_has_every_name_of_nvidia_s_file() -> None:
    assert set(NVIDIA.split()) - FILE.layouts.keys() == set()


def test_it_is_read_without_a_notice_and_below_the_limit() -> None:
    assert FILE.notices == ()
    assert len(FILE.layouts) < MIG_LAYOUTS


@pytest.mark.parametrize("model", CUTTABLE, ids=lambda model: model.short_name)
def test_each_model_gets_what_is_generated_for_it(model: GpuModel) -> None:
    assert model.table is not None
    generated = generated_layouts([LayoutCardModel(0, model.table)])
    for name, (wanted,) in generated.items():
        (target,) = resolve_targets(FILE.layouts[name], [card(model)]).targets
        assert (target.mig_enabled, target.counts) == (wanted.mig_enabled, wanted.counts), name
        assert is_feasible(model.table, target.counts), name


@pytest.mark.parametrize("model", CUTTABLE, ids=lambda model: model.short_name)
def test_a_board_with_another_pci_id_is_found_by_its_name(model: GpuModel) -> None:
    (target,) = resolve_targets(FILE.layouts["all-balanced"], [card(model, pci="FFFF")]).targets
    assert target.counts


def test_on_a_node_of_several_models_each_card_gets_what_it_has() -> None:
    cards = [card(model_by_short_name(name), index) for index, name in enumerate(("A100-40GB", "A30", "H100-80GB"))]
    found = resolve_targets(FILE.layouts["all-balanced"], cards)
    assert [each.counts for each in found.targets] == [
        {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
        {"1g.6gb": 2, "2g.12gb": 1},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    ]
    same_name = resolve_targets(FILE.layouts["all-1g.10gb"], cards)
    assert {each.card.index: each.counts for each in same_name.targets} == {0: {"1g.10gb": 4}, 2: {"1g.10gb": 7}}


def test_names_for_boards_whose_memory_was_rounded_otherwise_are_there() -> None:
    (target,) = resolve_targets(FILE.layouts["all-3g.95gb"], [card(model_by_short_name("GB200"))]).targets
    assert target.counts == {"3g.93gb": 2}

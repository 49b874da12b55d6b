"""The page of metrics has every series of the exporter, with its type, meaning and names; and no other."""

import re
from pathlib import Path

import pytest

from tessera.agent.base.settings import MetricNames
from tessera.agent.monitoring import exposition
from tessera.agent.monitoring.families import GPU_FAMILIES, MIG_FAMILIES, Family, dcgm_families
from tessera.agent.monitoring.findings import EXCESS, MEMORY_OVER_LIMIT, RULES
from tessera.agent.monitoring.lease_states import LeaseState
from tessera.agent.monitoring.sample import FIXED_MIG, SLICE, WHOLE
from tessera.api.sharing.devices import SharingKind
from tessera.nvml.measurements import Absence, Quantity

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
OTHERS = {each for each in vars(exposition).values() if isinstance(each, Family)}


@pytest.mark.parametrize("quantity", GPU_FAMILIES)
def test_each_quantity_has_its_row(quantity: Quantity) -> None:
    family = GPU_FAMILIES[quantity]
    (row,) = [row for row in ROWS if row[0] == f"`{family.name.removeprefix('tessera_gpu_')}`"]
    assert family.type == ("counter" if family.name.endswith("_total") else "gauge")  # as the page says
    assert row[1] == family.help
    for cell, names in zip(row[2:], (MetricNames.DCGM_48, MetricNames.DCGM_49), strict=True):
        assert set(re.findall(r"DCGM_\w+", cell)) == {each.name for each in dcgm_families(quantity, names)}
    assert MIG_FAMILIES[quantity].name == family.name.replace("_gpu_", "_mig_")


@pytest.mark.parametrize("family", sorted(OTHERS), ids=lambda family: family.name)
def test_each_other_series_has_its_row(family: Family) -> None:
    (row,) = [row for row in ROWS if row[0] == f"`{family.name}`"]
    assert row[1] == family.type
    assert row[-1] == family.help


def test_no_row_is_about_a_series_that_does_not_exist() -> None:
    own = {each.name for each in OTHERS} | {each.name.removeprefix("tessera_gpu_") for each in GPU_FAMILIES.values()}
    series = [row[0].strip("`") for row in ROWS if len(row) > 2 and "…" not in row[0]]
    assert set(series) == own


FINDINGS = {MEMORY_OVER_LIMIT: EXCESS, **RULES}


@pytest.mark.parametrize("kind", FINDINGS)
def test_each_kind_of_finding_has_its_row(kind: str) -> None:
    assert [f"`{kind}`", FINDINGS[kind].meaning] in ROWS


def test_reasons_and_kinds_are_those_of_the_program() -> None:
    words = [row[0].strip("`") for row in ROWS if len(row) == 2]
    assert sorted(words) == sorted([*(each.value for each in (*Absence, *LeaseState)), *FINDINGS])
    for kind in (WHOLE, FIXED_MIG, SLICE, SharingKind.TIME_SLICING.value, SharingKind.MPS.value):
        assert f"`{kind}`" in PAGE

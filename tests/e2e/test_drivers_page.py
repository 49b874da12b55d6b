"""The pages about drivers, each run from top to bottom as its reader would; see :mod:`tests.support.pages`.

The registry that the page calls ``localhost:5000`` is a real one, with what the article's repository had.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.driver.registry.programs import Image, registry
from tests.support.pages import ROOT, Page, Shell

from tessera.driver.kernels import parse_kernel_lists
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, RED_HAT

PAGE = ROOT / "docs" / "drivers.md"
EXPERIMENTS = ROOT / "docs" / "driver-experiments.md"
KERNEL = "5.14.0-284.25.1.el9_2.x86_64"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """A registry with a driver for one kernel, and its sources."""
    with registry(tmp_path / "storage") as running:
        name = "vemporop/nvidia-gpu-driver:525.125.06"
        running.fill(
            tmp_path,
            {f"{name}-{KERNEL}-rhcos4.13": Image(content="a"), f"{name}-rhcos4.13": Image(content="b")},
        )
        yield running.host


def test_every_command_prints_what_the_page_shows(lab_folder: Path, host: str) -> None:
    Page(PAGE, {"localhost:5000": host}).play(Shell(lab_folder))
    assert not lab_folder.exists()


@pytest.mark.parametrize("page", ["driver-experiments.md", "autoscaler-timers.md"])
def test_every_command_that_needs_no_cluster_prints_what_its_page_shows(page: str, lab_folder: Path) -> None:
    Page(ROOT / "docs" / page).play(Shell(lab_folder))


def test_the_table_has_red_hats_means_in_red_hats_column_only() -> None:
    table = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", EXPERIMENTS.read_text(), re.MULTILINE)
    assert [float(theirs) for _, theirs, _, _ in table] == [
        RED_HAT[POLICY_RESET, "built"],
        RED_HAT[POLICY_RESET, "precompiled-public"],
        RED_HAT[AUTOSCALE, "built"],
        RED_HAT[AUTOSCALE, "precompiled-public"],
        RED_HAT[AUTOSCALE, "precompiled-internal"],
    ]
    for what, theirs, reference, ours in table:
        assert abs(float(reference) / float(theirs) - 1) < 0.05, what
        assert float(ours) < float(reference), what


def test_the_list_of_next_kernels_that_it_shows_can_be_read() -> None:
    (block,) = Page(PAGE).blocks("yaml")
    found, problems = parse_kernel_lists(yaml.safe_load(block)["data"])
    assert not problems
    assert {each.os_id: each.ostree for each in found} == {"ubuntu": "", "rhcos": "415.92.202403191241-0"}

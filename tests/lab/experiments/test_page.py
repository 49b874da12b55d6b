"""The experiments print the output that docs/driver-experiments.md shows, in the time that it names.

Long: thirty repetitions of everything.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.experiments.test_means import FIVE
from tests.support.cost import run_within
from tests.support.pages import ROOT, Page, shows
from tests.support.virtual_lab import ENTRYPOINT

from tessera.cli.main import main
from tessera_lab.experiments.clusters import ArticleScenario
from tessera_lab.experiments.results import RED_HAT, Samples, read_results
from tessera_lab.experiments.runs import OURS, UPSTREAM

pytestmark = pytest.mark.soak

PAGE = ROOT / "docs" / "driver-experiments.md"
PRINTED = {block.partition("\n")[0].removeprefix("# tessera "): block for block in Page(PAGE).blocks("text")}
#: Processor seconds of one run of thirty; on a machine of its own they are its seconds.
LIMIT = 20.0


@pytest.mark.parametrize("command", PRINTED)
def test_the_page_shows_what_is_printed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    assert main([*command.split(), "--json", str(file)]) == 0
    assert shows(PRINTED[command].splitlines()[1:], capsys.readouterr().out)
    results = read_results(file.read_text())
    if "--breakdown" not in command:
        _in_table(results)
        assert main(["provisioning", "report", "--experiment", str(file), "-o", "svg"]) == 0
        drawn = (ROOT / "docs" / "pictures" / f"{results[0].experiment}.svg").read_text()
        assert capsys.readouterr().out.strip() == drawn.strip()


def _in_table(results: tuple[Samples, ...]) -> None:
    """The means are those of "Origin of the numbers"."""
    rows = re.findall(
        r"^\| (policy reset|autoscaling), [^|]+ \| \d+ \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    title = {"policy-reset": "policy reset", "autoscale": "autoscaling"}[results[0].experiment]
    means = [f"{each.summary.mean:.1f}" for each in results]
    assert [number for name, *pair in rows if name == title for number in pair] == means


@pytest.mark.parametrize("order", [UPSTREAM, OURS])
@pytest.mark.parametrize(("measure", "scenario"), FIVE)
def test_thirty_repetitions_take_less_than_twenty_seconds_and_the_reference_comes_to_red_hats_mean(
    measure: Callable[..., Samples], scenario: ArticleScenario, order: str
) -> None:
    told = run_within(LIMIT, lambda: measure(scenario, 30, operator=order, make=ENTRYPOINT))
    assert (len(told.samples), told.simulated) == (30, True)
    assert order == OURS or told.summary.mean == pytest.approx(RED_HAT[told.experiment, scenario.name], rel=0.05)


def test_every_experiment_is_printed_once() -> None:
    commands = {command.split()[1] for command in PRINTED}
    assert commands == {"policy-reset", "autoscale"}
    assert any("--breakdown" in command for command in PRINTED)

"""The scenario in the user guide is one."""

import re
from pathlib import Path

from monitoring.alerts import ALERTS

from tessera_lab.activity.library import builtin_names
from tessera_lab.activity.scenario import parse_scenario

GUIDE = Path(__file__).parents[2] / "docs" / "user-guide.md"


def test_the_scenario_in_the_guide_is_valid() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("### A lab that lives")[2]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    scenario = parse_scenario(found[1])
    assert (len(scenario.pods), len(scenario.use), len(scenario.steps)) == (1, 1, 3)


def test_the_guide_names_each_alert_and_the_scenario_that_fires_it() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("### A lab that lives")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w-]+)`", section))
    assert {alert.name for alert in ALERTS} <= named
    assert set(builtin_names()) - {"busy-cluster"} <= named | set(re.findall(r"scenario ([\w-]+) ", section))

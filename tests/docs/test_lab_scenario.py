"""The scenario on the page about the lab is one."""

import re
from pathlib import Path

from monitoring.alerts import ALERTS

from tessera_lab.activity.scenario import builtin_names, parse_scenario

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"


def test_the_scenario_on_the_page_is_valid() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## A lab that lives")[2]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    scenario = parse_scenario(found[1])
    assert (len(scenario.pods), len(scenario.use), len(scenario.steps)) == (1, 1, 3)


def test_the_page_names_each_alert_and_the_scenario_that_fires_it() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## A lab that lives")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w-]+)`", section))
    assert {alert.name for alert in ALERTS} <= named
    assert set(builtin_names()) - {"busy-cluster"} <= named | set(re.findall(r"scenario ([\w-]+) ", section))

"""The scenario in the user guide is one."""

import re
from pathlib import Path

from tessera_lab.activity.scenario import parse_scenario

GUIDE = Path(__file__).parents[2] / "docs" / "user-guide.md"


def test_the_scenario_in_the_guide_is_valid() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("### A lab that lives")[2]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    scenario = parse_scenario(found[1])
    assert (len(scenario.pods), len(scenario.use), len(scenario.steps)) == (1, 1, 3)

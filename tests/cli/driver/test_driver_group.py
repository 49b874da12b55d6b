"""``tessera driver`` as a group: its help loads none of its commands."""

import pytest
from tests.support.imported_modules import HEAVY, imported_modules


def test_the_overview_loads_no_command() -> None:
    assert not imported_modules("driver", "--help") & {*HEAVY, "asyncio"}


@pytest.mark.parametrize("command", ["build", "coverage", "images", "mirror", "status"])
def test_a_commands_help_loads_nothing_that_only_its_work_needs(command: str) -> None:
    assert not imported_modules("driver", command, "--help") & HEAVY

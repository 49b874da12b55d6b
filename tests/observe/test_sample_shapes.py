"""A sample of use has four shapes from NVML to the browser (docs/how-it-works.md); the last one is generated."""

from types import ModuleType

import msgspec
import pytest

from tessera.agent.monitoring import lease_states, sample
from tessera.api.nodes import usage
from tessera.dashboard import documents
from tessera.observe import usage_rows

WAY = (sample, lease_states, usage, usage_rows, documents)


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    """The structs that a module defines."""
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return [each for each in found if each.__module__ == module.__name__]


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        ({"slots", "health"}, {"CardUsage", "CardDocument"}),
        ({"evidence", "wasted"}, {"JudgedLease", "LeaseUsage", "LeaseDocument"}),
        ({"temperature"}, {"CardRow", "CardDocument"}),
    ],
)
def test_a_sample_is_copied_into_no_further_shape(fields: set[str], shapes: set[str]) -> None:
    every = [each for module in WAY for each in structs_of(module)]
    assert {each.__name__ for each in every if fields <= set(each.__struct_fields__)} == shapes

"""Selectors of devices."""

from decimal import Decimal
from typing import Any

import pytest

from tessera.cel.evaluator import Meter
from tessera.cel.kubernetes_values import read_semver
from tessera.dra.devices import Capacity, Device, DeviceId
from tessera.dra.selectors import DeviceSelectors

OURS = "gpu.tessera.dev"


def device(**attributes: Any) -> Device:
    known: dict[str, Any] = {
        "profile": "1g.5gb",
        "index": 0,
        "driverVersion": read_semver("580.95.5"),
        "mig": True,
    } | attributes
    return Device(
        id=DeviceId(OURS, "n1", "gpu-0"),
        attributes={f"{OURS}/{name}": value for name, value in known.items()} | {"resource.kubernetes.io/numaNode": 1},
        capacity={f"{OURS}/memory": Capacity(value=Decimal(5 * 2**30))},
    )


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("true", True),
        (f"device.driver == '{OURS}'", True),
        (f"device.attributes['{OURS}'].profile == '1g.5gb'", True),
        (f"device.attributes['{OURS}']['profile'].startsWith('2g')", False),
        (f"device.attributes['{OURS}'].mig", True),
        (f"device.capacity['{OURS}'].memory.compareTo(quantity('5Gi')) >= 0", True),
        (f"device.capacity['{OURS}'].memory.isGreaterThan(quantity('5Gi'))", False),
        (f"device.attributes['{OURS}'].driverVersion.isGreaterThan(semver('580.0.0'))", True),
        (f"device.attributes['{OURS}'].index in [0, 2]", True),
        ("'other.example.com' in device.attributes", False),
        (f"'{OURS}' in device.attributes", True),
        (f"device.attributes.exists(d, d == '{OURS}')", True),
        (f"has(device.attributes['{OURS}'].missing)", False),
        ("has(device.attributes['other.example.com'].missing)", False),
        (f"device.attributes['{OURS}'].?missing.orValue('x') == 'x'", True),
        ("device.attributes['other.example.com'].?missing.hasValue()", False),
        (f"cel.bind(d, device.attributes['{OURS}'], d.profile == '1g.5gb' && d.index == 0)", True),
        ("device.attributes['resource.kubernetes.io'].numaNode == 1", True),
        ("device.allowMultipleAllocations", False),
        (f"sets.contains(['1g.5gb', '2g.10gb'], [device.attributes['{OURS}'].profile])", True),
        (f"device.attributes['{OURS}'].profile.includes('1g.5gb')", True),
    ],
)
def test_selectors(expression: str, matches: bool) -> None:
    found = DeviceSelectors().matches(expression, device())
    assert (found.matches, found.problem) == (matches, "")


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (f"device.attributes['{OURS}'].missing == 1", "no such key: missing"),
        ("device.attributes['no'].such.isGreaterThan(quantity('0'))", "no such key: such"),
        (f"device.attributes['{OURS}'].profile", "the expression is string, a condition must be bool"),
        ("device.name == 'gpu-0'", "it does not compile: undefined field 'name' at"),
        ("node.name == 'n1'", "it does not compile: undeclared reference to 'node'"),
        ("device.driver ==", "it does not compile: syntax error at 16"),
        (f"'{'a' * 60}'.matches('^(a+)+$')", "costs more than 1,000,000 units"),
    ],
)
def test_a_selector_that_fails_matches_nothing_and_says_why(expression: str, problem: str) -> None:
    found = DeviceSelectors().matches(expression, device())
    assert not found.matches
    assert problem in found.problem


@pytest.mark.parametrize(
    "expression",
    [
        f"device.attributes['{OURS}'].index == 3",
        f"device.attributes['{OURS}']['index'] == 3",
        f"device.attributes['{OURS}'].?index.orValue(9) == 3",
        f"cel.bind(d, device.attributes['{OURS}'], d.index == 3)",
        f"cel.bind(d, device, d.attributes['{OURS}'].index == 3)",
        f"device.attributes['{OURS}'].exists(k, k == 'index') && device.attributes['{OURS}'].index == 3",
        "device.attributes[device.driver].index == 3",
        f"[device.attributes['{OURS}'].index].exists(i, i == 3)",
        f"{{'a': device.attributes['{OURS}'].index}}.a == 3",
    ],
)
def test_a_remembered_result_is_never_that_of_a_device_with_other_values(expression: str) -> None:
    selectors = DeviceSelectors()
    found = [selectors.matches(expression, device(index=each)).matches for each in (0, 3, 0, 3)]
    assert found == [False, True, False, True]


def test_true_and_one_are_not_the_same_value() -> None:
    selectors, expression = DeviceSelectors(), f"device.attributes['{OURS}'].mig == true"
    assert [selectors.matches(expression, device(mig=each)).matches for each in (1, True)] == [False, True]


def test_alike_devices_cost_one_evaluation() -> None:
    selectors, budget, costs = DeviceSelectors(), Meter(1_000_000), set[float]()
    for number in range(50):
        selectors.matches(f"device.attributes['{OURS}'].profile == '1g.5gb'", device(uuid=f"GPU-{number}"), budget)
        costs.add(budget.limit - budget.left)
    assert 0 not in costs
    assert len(costs) == 1


def test_an_expensive_selector_is_refused_after_some_devices() -> None:
    expression = f"[{'1,' * 900}1].all(a, a == 1 && device.attributes['{OURS}'].uuid != '')"
    selectors = DeviceSelectors()
    found = [selectors.matches(expression, device(uuid=f"GPU-{number}")) for number in range(400)]
    assert found[0].matches
    assert "its evaluations cost more than 1,000,000 units" in found[-1].problem
    assert selectors.matches("true", device()).matches

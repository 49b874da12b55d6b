"""Recording rules: one series for both dialects and for Tessera's own, MIG devices by their size, nothing invented."""

from collections.abc import Mapping
from typing import Any

import pytest
from monitoring.recordings import ACTIVITIES, CARDS, DEVICES, RECORDINGS
from tests.monitoring.conftest import Promtool, series

from tessera.agent.base.settings import MetricNames
from tessera.agent.monitoring.families import (
    COUNTER,
    GPU_FAMILIES,
    MIG_FAMILIES,
    OF_INSTANCES,
    Family,
    dcgm_families,
)
from tessera.nvml.measurements import Quantity

OWN_CARD = 'node="n1", gpu="GPU-1"'
OWN_MIG = 'node="n1", gpu="GPU-1", device="MIG-1", profile="3g.20gb"'
#: Labels of dcgm-exporter; those of 4.8 and of 4.9 differ in the node's name.
DCGM_CARD = 'gpu="3", UUID="GPU-1", device="nvidia3", modelName="A100", {host}="n1"'
DCGM_MIG = f'{DCGM_CARD}, GPU_I_ID="2", GPU_I_PROFILE="3g.20gb"'
#: The value of a gauge, or of a counter's rate, in the base unit; exact in each unit.
VALUE = 0.5


def text(family: Family, labels: str) -> Mapping[str, str | float]:
    """A series that has the value, or whose rate is the value."""
    value = VALUE * family.factor
    return {f"{family.name}{{{labels}}}": f"0+{value * 60!r}x10" if family.type == COUNTER else value}


def expect(recording: str, samples: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Expects exactly these samples of a recording, by their labels."""
    given = (samples or {}).items()
    expected = [{"labels": f"{recording}{{{labels}}}", "value": value} for labels, value in given]
    return {"expr": recording, "eval_time": "10m", "exp_samples": expected}


def rounded(expected: dict[str, Any]) -> dict[str, Any]:
    """The same of the rounded values, which have no name: a rate is not exact."""
    samples = [{**each, "labels": each["labels"][each["labels"].index("{") :]} for each in expected["exp_samples"]]
    return {**expected, "expr": f"round({expected['expr']}, 0.0625)", "exp_samples": samples}


CASES = [
    *((f"tessera:gpu_{name}", GPU_FAMILIES, quantity, OWN_CARD, DCGM_CARD) for quantity, (name, _) in CARDS.items()),
    *(
        (f"tessera:gpu_{name}", GPU_FAMILIES, quantity, OWN_CARD, DCGM_CARD)
        for quantity, (name, _) in ACTIVITIES.items()
    ),
    *(
        (f"tessera:mig_{name}", MIG_FAMILIES, quantity, OWN_MIG, DCGM_MIG)
        for table in (DEVICES, ACTIVITIES)
        for quantity, (name, _) in table.items()
    ),
]


@pytest.mark.parametrize(("recording", "families", "quantity", "own", "dcgm"), CASES, ids=[case[0] for case in CASES])
def test_a_quantity_has_one_series_in_base_units_in_every_dialect(
    promtool: Promtool, *, recording: str, families: Mapping[Quantity, Family], quantity: Quantity, own: str, dcgm: str
) -> None:
    """Tessera's series, each dialect alone, all of them together, and none."""
    ours = text(families[quantity], own)
    old, new = (
        {
            name: value
            for family in dcgm_families(quantity, names)
            for name, value in text(family, dcgm.format(host=host)).items()
        }
        for names, host in ((MetricNames.DCGM_48, "Hostname"), (MetricNames.DCGM_49, "hostname"))
    )
    of_dcgm = own.replace("MIG-1", "2")
    tests = [(ours, own), (old, of_dcgm), (new, of_dcgm), ({**ours, **old, **new}, own), ({**old, **new}, of_dcgm)]
    checks = [
        {"input_series": series(given), "promql_expr_test": [rounded(expect(recording, {labels: VALUE}))]}
        for given, labels in tests
        if given
    ]
    silent = {"input_series": series({"unrelated": 1}), "promql_expr_test": [expect(recording)]}
    promtool.test_rules(*checks, silent)


@pytest.mark.parametrize("quantity", [each for each in CARDS if each not in OF_INSTANCES])
def test_a_card_with_instances_has_the_values_that_dcgm_exporter_repeats_for_each(
    promtool: Promtool, quantity: Quantity
) -> None:
    checks = []
    for names, host in ((MetricNames.DCGM_48, "Hostname"), (MetricNames.DCGM_49, "hostname")):
        instances = [DCGM_MIG.format(host=host), DCGM_MIG.format(host=host).replace('ID="2"', 'ID="3"')]
        given = {
            name: value
            for family in dcgm_families(quantity, names)
            for instance in instances
            for name, value in text(family, instance).items()
        }
        expected = rounded(expect(f"tessera:gpu_{CARDS[quantity][0]}", {OWN_CARD: VALUE} if given else None))
        checks.append({"input_series": series(given or {"unrelated": 1}), "promql_expr_test": [expected]})
    promtool.test_rules(*checks)


#: A card with two MIG devices, 3/7 and 1/7 of the SMs, half and an eighth of the memory; a card beside it without MIG.
TWO_CARDS: Mapping[str, str | float] = {
    'tessera_gpu_memory_size_bytes{node="n1", gpu="GPU-1"}': 40960,
    'tessera_mig_memory_size_bytes{node="n1", gpu="GPU-1", device="MIG-1", profile="3g.20gb"}': 19968,
    'tessera_mig_memory_size_bytes{node="n1", gpu="GPU-1", device="MIG-2", profile="1g.5gb"}': 4864,
    'tessera_gpu_memory_size_bytes{node="n1", gpu="GPU-2"}': 40960,
    'tessera_gpu_memory_used_bytes{node="n1", gpu="GPU-2"}': 10240,
    'tessera_mig_memory_used_bytes{node="n1", gpu="GPU-1", device="MIG-1", profile="3g.20gb"}': 4992,
}
MIG_1 = 'node="n1", gpu="GPU-1", device="MIG-1", profile="3g.20gb"'
MIG_2 = 'node="n1", gpu="GPU-1", device="MIG-2", profile="1g.5gb"'


def test_a_mig_device_has_its_size_in_eighths_and_its_memory(promtool: Promtool) -> None:
    checks = [
        expect("tessera:mig_size:ratio", {MIG_1: 0.5, MIG_2: 0.125}),
        expect("tessera:mig_memory_used:ratio", {MIG_1: 0.25}),
        expect("tessera:gpu_memory_used:ratio", {'node="n1", gpu="GPU-2"': 0.25}),
    ]
    promtool.test_rules({"input_series": series(TWO_CARDS), "promql_expr_test": checks})


@pytest.mark.parametrize("quantity", ACTIVITIES)
def test_a_card_in_mig_mode_is_as_active_as_its_devices_by_size(promtool: Promtool, quantity: Quantity) -> None:
    own, card = MIG_FAMILIES[quantity].name, GPU_FAMILIES[quantity].name
    given = {
        **TWO_CARDS,
        f"{own}{{{MIG_1}}}": 1,
        f"{own}{{{MIG_2}}}": 0.5,
        f'{card}{{node="n1", gpu="GPU-1"}}': 0.99,
        f'{card}{{node="n1", gpu="GPU-2"}}': 0.75,
    }
    expected = expect(
        f"tessera:gpu_{ACTIVITIES[quantity][0]}", {'node="n1", gpu="GPU-1"': 0.5625, 'node="n1", gpu="GPU-2"': 0.75}
    )
    promtool.test_rules({"input_series": series(given), "promql_expr_test": [expected]})


def test_a_card_before_hopper_is_as_busy_as_it_is_utilized_and_an_ampere_mig_device_is_unknown(
    promtool: Promtool,
) -> None:
    given = {**TWO_CARDS, 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-2", Hostname="n1"}': 50}
    expected = expect("tessera:gpu_busy:ratio", {'node="n1", gpu="GPU-2"': 0.5})
    promtool.test_rules({"input_series": series(given), "promql_expr_test": [expected]})


def test_a_namespace_computes_with_its_parts_of_cards(promtool: Promtool) -> None:
    def pod(name: str, namespace: str, kind: str, device: str) -> str:
        place = f'node="n1", gpu="GPU-1", device="{device}", kind="{kind}"'
        return f'{{namespace="{namespace}", pod="{name}", container="main", {place}}}'

    whole, piece = pod("a", "one", "whole", "GPU-9"), pod("b", "one", "slice", "MIG-1")
    shared, within = pod("c", "two", "time-slicing", "GPU-8"), pod("d", "two", "mps", "MIG-2")
    given: Mapping[str, str | float] = {
        **TWO_CARDS,
        f"tessera_pod_gpu_share_ratio{whole}": 1,
        f"tessera_pod_gpu_busy_ratio{whole}": 0.25,
        f"tessera_pod_gpu_share_ratio{piece}": 0.5,
        f"tessera_pod_gpu_busy_ratio{piece}": 1,
        f"tessera_pod_gpu_share_ratio{shared}": 0.25,
        f"tessera_pod_gpu_busy_ratio{shared}": 0.75,
        f"tessera_pod_gpu_share_ratio{within}": 0.0625,
        f"tessera_pod_gpu_busy_ratio{within}": 0.5,
        f"tessera_pod_gpu_wasted_seconds_total{whole}": "0+30x10",
    }
    one, two = 'namespace="one"', 'namespace="two"'
    checks = [
        expect("tessera:namespace_gpu_share:sum", {one: 1.5, two: 0.3125}),
        expect("tessera:namespace_gpu_busy:sum", {one: 0.75, two: 0.8125}),
        expect("tessera:namespace_gpu_wasted:rate5m", {one: 0.5}),
    ]
    promtool.test_rules({"input_series": series(given), "promql_expr_test": checks})


def test_the_held_part_of_the_slots_is_that_of_a_model(promtool: Promtool) -> None:
    given = {
        'tessera_slots{model="A100", state="held"}': 6,
        'tessera_slots{model="A100", state="free"}': 2,
        'tessera_slots{model="H100", state="held"}': 0,
        'tessera_slots{model="H100", state="free"}': 0,
    }
    expected = expect("tessera:slots_held:ratio", {'model="A100"': 0.75})
    promtool.test_rules({"input_series": series(given), "promql_expr_test": [expected]})


def test_no_rule_makes_a_series_of_nothing(promtool: Promtool) -> None:
    checks = [expect(each.name) for group in RECORDINGS.values() for each in group]
    promtool.test_rules({"input_series": series({"unrelated": 1}), "promql_expr_test": checks})

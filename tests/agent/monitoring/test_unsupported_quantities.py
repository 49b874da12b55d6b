"""A quantity that a card does not report is left out of metrics, page and tables; nothing becomes 0 by that."""

from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.conftest import Scene
from tests.agent.monitoring.test_whole_agent import start

from tessera.access.agent_pages import FleetUsage
from tessera.agent.monitoring.families import GPU_FAMILIES
from tessera.agent.monitoring.sample import ProcessUse, held_memory
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.top import columns
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument
from tessera.nvml.measurements import Quantity
from tessera.observe.reading import Usage
from tessera.observe.top_view import TopView, View
from tessera.observe.usage_rows import card_rows

#: Columns of `tessera top` that show a quantity alone.
COLUMNS = {
    Quantity.MEMORY_USED: "n/a",
    Quantity.MEMORY_TOTAL: "/n/a",
    Quantity.POWER: "n/a",
    Quantity.POWER_LIMIT: "/n/a",
    Quantity.TEMPERATURE: "n/a",
    Quantity.SM_CLOCK: "n/a",
    Quantity.THROTTLE_REASONS: "n/a",
}
#: Its family; quantities without one are in other metrics only.
OWN = {each: family.name for each, family in GPU_FAMILIES.items()} | {
    Quantity.THROTTLE_REASONS: "tessera_gpu_throttled",
}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.startswith("tessera_metric_unavailable")
    }


def zeros(value: object, path: str = "") -> Iterator[str]:
    """The places of a document that are 0."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from zeros(each, f"{path}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from zeros(each, f"{path}.{number}")
    elif value == 0 and value is not False:
        yield path


def table(page: NodeUsage) -> str:
    usage = Usage(fleet=FleetUsage(nodes=(page,)), cards=card_rows([page]), leases=[], agents=1)
    return "\n".join(columns.table(TopView(view=View.CARDS), usage))


def card_document(page: NodeUsage) -> object:
    documents = make_documents(FleetUsage(nodes=(page,)), (), ()).values()
    (card,) = (each for each in documents if isinstance(each, CardDocument))
    return msgspec.to_builtins(card)


@pytest.mark.scene(cards="1xH100-80GB", mig=False)
async def test_no_place_shows_a_quantity_that_the_card_does_not_report(scene: Scene) -> None:
    await scene.begin(label="all-disabled", agent=False)
    exporter = start(scene).exporter
    (card,) = scene.machine.uuids()
    scene.machine.start_process(card, 1 << 30, activity=0.5)

    async def read() -> tuple[Samples, NodeUsage]:
        await scene.clock.sleep(12.0)
        return samples(exporter.text), msgspec.json.decode(exporter.usage_json(), type=NodeUsage)

    await read()
    rows, page = await read()
    known = page.cards[0].values.keys()
    assert {"power", "memory_used", "throttle_reasons", "encoder_utilization"} <= known
    for quantity in (each for each in Quantity if each.value in known):
        scene.machine.set_unreported(card, quantity)
        left, shown = await read()
        lost = {name for name, _ in rows.keys() - left.keys()}
        assert {OWN.get(quantity, ""), f"{OWN.get(quantity, '')}_total"} & {"", *lost}, quantity
        assert quantity.value not in shown.cards[0].values
        assert shown.cards[0].absent[quantity.value] == "not_supported"
        new = [key for key, value in left.items() if value == 0 and rows.get(key, 1.0) != 0]
        assert not [name for name, _ in new if "age" not in name], quantity
        for make in (msgspec.to_builtins, card_document):
            assert set(zeros(make(shown))) <= set(zeros(make(page))), quantity
        assert COLUMNS.get(quantity, "") in table(shown), table(shown)
        assert quantity not in COLUMNS or table(shown).count("n/a") > table(page).count("n/a")


@pytest.mark.parametrize(("held", "sum_"), [((1, 2), 3.0), ((1, None), None), ((), 0.0)])
def test_the_memory_of_processes_is_known_if_that_of_each_is(held: tuple[int | None, ...], sum_: float | None) -> None:
    assert held_memory(ProcessUse(None, each, None, pid=number) for number, each in enumerate(held)) == sum_

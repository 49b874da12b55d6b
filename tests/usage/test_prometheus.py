"""GPU-hours from a real Prometheus: the history of a simulated node is imported, and every query runs on it."""

import asyncio
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.monitoring.prometheus_server import Prometheus
from tests.support.ports import free_port
from tests.usage.conftest import MODEL, AgentNode

from tessera.api.nodes.health import CardHealth, CardState
from tessera.errors import UserError
from tessera.limits.usage import PROMETHEUS_ANSWER
from tessera.usage.prometheus import PrometheusSource
from tessera.usage.prometheus_access import query_address
from tessera.usage.record import HOUR
from tessera.usage.report import CardHours, Grouping, UsageReport, UsageTotals, make_report

KEYS = {Grouping.USER: "tessera.dev/user", Grouping.LABEL: "team"}
#: The history begins so long ago; it lasts two hours and a half, of which a half hour has no samples.
AGO = 3 * HOUR
USED = ("tessera_gpu_info", "tessera_pod_gpu_share_ratio", "tessera_pod_gpu_state", "tessera_gpu_health_state")


class History:
    """Samples of a node each 30 seconds, as OpenMetrics with times."""

    def __init__(self) -> None:
        self.begin = time.time() // HOUR * HOUR - AGO
        self._lines: dict[str, list[str]] = defaultdict(list)

    def play(self, node: AgentNode, seconds: float) -> None:
        for _ in range(int(seconds / 30)):
            node.passes(30)
            at = self.begin + node.now
            for line in node.metrics.splitlines():
                name = re.match(r"\w+", line)
                if name and name[0] in USED:
                    labels = line.rpartition(" ")[0].replace("{", '{node="n1",', 1)
                    self._lines[name[0]].append(f"{labels} {line.rpartition(' ')[2]} {at}")
            for pod in node.held:
                labels = f'namespace="{pod.partition("-")[0]}",pod="{pod}",label_tessera_dev_user="u-{pod[0]}"'
                self._lines["kube_pod_labels"].append(f"kube_pod_labels{{{labels}}} 1 {at}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines) + "# EOF\n"


@pytest.fixture(scope="module")
def history() -> History:
    """An hour of a whole card and two shares, a gap, an hour of one share beside a card that is not well."""
    made, node = History(), AgentNode()
    node.hold("red-1", card=0, share=1.0, busy=0.9)
    node.hold("blue-1", card=1, share=0.25, busy=0.0)
    node.hold("blue-2", card=1, share=0.25, busy=0.5)
    made.play(node, HOUR)
    node.end("red-1")
    node.passes(HOUR / 2)
    node.fail(0, CardHealth(state=CardState.NEEDS_RESET))
    made.play(node, HOUR)
    return made


@pytest.fixture(scope="module")
def prometheus(history: History, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yaml").write_text("{}")
    (folder / "history.txt").write_text(history.text())
    promtool = shutil.which("promtool")
    assert promtool, "promtool is needed: scripts/need-debian .venv/tools promtool"
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    running = Prometheus(folder, free_port())
    try:
        running.wait_for("vector(1)")
        yield running
    finally:
        running.close()


def totals(prometheus: Prometheus, begin: float, end: float, grouping: Grouping = Grouping.NAMESPACE) -> UsageTotals:
    async def ask() -> UsageTotals:
        async with query_address(prometheus.address) as query:
            return await PrometheusSource(query, "Prometheus", KEYS).totals(begin, end, grouping)

    return asyncio.run(ask())


def first_hour(prometheus: Prometheus, history: History, grouping: Grouping) -> UsageReport:
    return make_report(totals(prometheus, history.begin, history.begin + HOUR, grouping), grouping)


def hours(report: UsageReport) -> dict[str, tuple[float, float, float]]:
    return {row.name: (row.allocated, row.active, row.idle) for row in report.rows}


def test_the_hours_of_namespaces_are_those_that_pods_held(prometheus: Prometheus, history: History) -> None:
    found = hours(first_hour(prometheus, history, Grouping.NAMESPACE))
    # A lease without a process is never used from its tenth minute on.
    assert found["red"] == pytest.approx((1.0, 1.0, 0.0), abs=0.03)
    assert found["blue"] == pytest.approx((0.5, 0.25, 0.25 * 50 / 60), abs=0.03)


def test_all_parts_sum_to_the_capacity(prometheus: Prometheus, history: History) -> None:
    found = totals(prometheus, history.begin, history.begin + 2.5 * HOUR)
    report = make_report(found, Grouping.MODEL)
    cards = report.cards
    assert cards is not None
    assert [row.name for row in report.rows] == [MODEL]
    parts = (cards.allocated, cards.free, cards.unavailable, cards.unknown)
    assert sum(parts) == pytest.approx(cards.capacity)
    # The last samples before the gap count for five minutes more, as everywhere in Prometheus.
    assert cards.capacity == pytest.approx(4.0, abs=0.25)
    assert cards.unavailable == pytest.approx(1.0, abs=0.05)
    assert cards.allocated == pytest.approx(1.5 + 0.5, abs=0.15)
    assert found.simulated


def test_time_without_samples_is_told(prometheus: Prometheus, history: History) -> None:
    (note,) = totals(prometheus, history.begin, history.begin + 2.5 * HOUR).notes
    told = re.search(r"samples for ([\d.]+)% of the window", note)
    assert told is not None
    assert 78 < float(told[1]) < 86
    assert totals(prometheus, history.begin + 60, history.begin + HOUR).notes == ()


def test_users_come_from_kube_state_metrics(prometheus: Prometheus, history: History) -> None:
    found = hours(first_hour(prometheus, history, Grouping.USER))
    assert {name: value[0] for name, value in found.items()} == pytest.approx({"u-r": 1.0, "u-b": 0.5}, abs=0.03)


def test_a_label_that_kube_state_metrics_does_not_show_is_named(prometheus: Prometheus, history: History) -> None:
    with pytest.raises(UserError, match=r"label label_team.*pods=\[team\].*leave --prometheus out"):
        first_hour(prometheus, history, Grouping.LABEL)


def test_a_prometheus_without_cards_says_what_to_do(prometheus: Prometheus, history: History) -> None:
    with pytest.raises(UserError, match="no series tessera_gpu_info in this window: let it scrape the agents"):
        totals(prometheus, history.begin - 10 * HOUR, history.begin - 9 * HOUR)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "does not answer as a Prometheus does"),
        (b'{"status": "error", "error": "too\\nmany"}', r"too\\nmany"),
        (b'{"status": "success", "data": {"result": [{"metric": 5}]}}', "does not answer as a Prometheus does"),
        (b" " * (PROMETHEUS_ANSWER + 1), "16,777,217 bytes"),
    ],
)
def test_an_answer_that_is_none_is_refused(body: bytes, words: str) -> None:
    async def answer(_: object) -> bytes:
        return body

    with pytest.raises(UserError, match=words):
        asyncio.run(PrometheusSource(answer, "P", KEYS).totals(0.0, HOUR, Grouping.MODEL))


def test_values_that_are_no_seconds_count_nothing() -> None:
    async def answer(_: object) -> bytes:
        labels = '{"namespace": "red", "model": "M"}'
        rows = ", ".join(f'{{"metric": {labels}, "value": [1, "{value}"]}}' for value in ("NaN", "-5", "+Inf", "x"))
        return f'{{"status": "success", "data": {{"result": [{rows}]}}}}'.encode()

    found = asyncio.run(PrometheusSource(answer, "P", KEYS).totals(0.0, HOUR, Grouping.MODEL))
    report = make_report(found, Grouping.MODEL)
    assert report.total.allocated == 0
    assert report.cards == CardHours(capacity=0, allocated=0, free=0, unavailable=0, unknown=0)


def test_an_address_where_nothing_listens_is_named() -> None:
    async def ask() -> None:
        async with query_address(f"http://127.0.0.1:{free_port()}") as query:
            await query({"query": "1"})

    with pytest.raises(UserError, match=r"Prometheus http://127\.0\.0\.1:\d+ does not answer"):
        asyncio.run(ask())

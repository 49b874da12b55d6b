"""Boards: their text is generated, missing data is n/a, and a real Prometheus answers every query with data."""

import json
import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from monitoring.boards import BOARDS
from monitoring.boards.panels import Board, Query
from monitoring.files import FOLDER
from monitoring.manifests import COMPONENTS, NAMESPACE, prometheus, rules
from monitoring.recordings import RECORDINGS
from tests.monitoring.exporters import GIB, Agent, Controller, Webhook
from tests.monitoring.prometheus_server import Prometheus, filled
from tests.support.api_user import ManualClock
from tests.support.ports import free_port

from tessera.dashboard.past import RANGES, PastReader, Subject, make_prometheus, queries

#: Scrapes after which rates and their rules have values.
SCRAPES = 4
#: Units that Grafana knows (grafana/data, valueFormats).
UNITS = {"none", "percentunit", "watt", "joule", "celsius", "hertz", "bytes", "Bps", "s", "cps", "wps", "reqps"}
QUERIES = [
    pytest.param(query, id=f"{board.uid}-{panel.title}-{number}")
    for board in BOARDS
    for _, panels in board.rows
    for panel in panels
    for number, query in enumerate(panel.queries)
]
DOCS = "".join(
    (FOLDER.parents[1] / "docs" / name).read_text(encoding="utf-8") for name in ("metrics.md", "own-metrics.md")
)


class Targets:
    """Serves the pages that Prometheus scrapes, on loopback.

    Attributes:
        scraped: set once each page was read often enough.
    """

    def __init__(self, pages: Mapping[str, Callable[[], bytes]]) -> None:
        self.scraped = threading.Event()
        for page in pages.values():
            page()  # an error shows here, and not as a target that Prometheus cannot read
        counts = dict.fromkeys(pages, 0)
        scraped = self.scraped

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = pages[self.path]()
                counts[self.path] += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text)
                if min(counts.values()) > SCRAPES:
                    scraped.set()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def configuration(targets: Targets) -> dict[str, Any]:
    """The configuration that ships, with the targets in place of the cluster's pods."""
    made = json.loads(json.dumps(prometheus()))
    made["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    nodes = {"tessera-agent": ("n1", "n2"), "tessera-controller": ("n3",), "tessera-webhook": ("n3",)}
    for job in made["scrape_configs"]:
        del job["kubernetes_sd_configs"]
        job.pop("authorization", None)  # these pages ask for no token
        component = job["job_name"]
        job["static_configs"] = [
            {
                "targets": [targets.address],
                "labels": {
                    "__metrics_path__": f"/{component}/{node}",
                    "__meta_kubernetes_pod_label_app_kubernetes_io_name": component,
                    "__meta_kubernetes_pod_container_port_name": "http",
                    "__meta_kubernetes_pod_node_name": node,
                    "instance": node,
                },
            }
            for node in nodes[component]
        ]
    return dict(made)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with the rules that ship, after some scrapes of two agents, a controller and a webhook."""
    folder = tmp_path_factory.mktemp("prometheus")
    cut = Agent("n1", "2xH100-80GB", slices=[("3g.40gb", 0), ("1g.10gb", 4)], shares=["shared-1", "shared-2"])
    targets = Targets(
        {
            "/tessera-agent/n1": cut.text,
            "/tessera-agent/n2": Agent("n2", "1xA100-40GB").text,
            "/tessera-controller/n3": Controller().text,
            "/tessera-webhook/n3": Webhook().text,
        }
    )
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(targets)), encoding="utf-8")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()), encoding="utf-8")
    started = Prometheus(folder, free_port())
    try:
        assert targets.scraped.wait(120)
        started.wait_for("tessera:namespace_gpu_wasted:rate5m and on () (count(tessera:gpu_energy_joules:rate5m) == 3)")
        yield started
    finally:
        started.close()
        targets.close()


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_returns_data_or_says_why_not(server: Prometheus, query: Query) -> None:
    expr = filled(query.expr)
    assert "$" not in expr
    found = server.query(expr)
    if query.absent:
        assert not found, "it returns data: remove the reason"
        return
    assert found, expr
    assert not all(math.isnan(float(each["value"][1])) for each in found)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_series_that_the_pages_list(query: Query) -> None:
    recorded = {each.name for group in RECORDINGS.values() for each in group}
    assert set(re.findall(r"tessera:[\w:]+", query.expr)) <= recorded
    names = re.findall(r"\b(?:tessera_(?:gpu|mig)_(\w+)|(tessera_\w+|DCGM_\w+))", query.expr)
    for own, other in names:
        name = other or own
        listed = {name, re.sub(r"_(?:bucket|count)$", "", name), f"tessera_gpu_{name}", f"tessera_mig_{name}"}
        listed |= {re.sub(r"_(?:bucket|count)$", "", each) for each in listed}
        assert any(f"`{each}`" in DOCS for each in listed), name


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (Subject(), {"held": 2.625, "busy": None, "power": None, "waiting": None}),
        # The power of pods is that of leases, which the agents of this test do not measure.
        (Subject(namespace="team-a"), {"held": 0.625, "computing": 0.75 / 2 + 0.25 / 8, "unused": None}),
        (
            Subject(card="cut"),
            {"held": 0.625, "busy": 0.75 / 2 + 0.25 / 8, "memory": None, "power": None, "heat": None},
        ),
    ],
    ids=["cluster", "namespace", "card"],
)
async def test_the_live_page_gets_its_curves(
    server: Prometheus, subject: Subject, expected: Mapping[str, float | None]
) -> None:
    if subject.card:
        (cut,) = server.query('tessera_gpu_info{mig="true"}')
        subject = Subject(card=cut["metric"]["gpu"])
    clock = ManualClock()
    clock.seconds = time.time() + RANGES["15m"][1]  # so that the last place is after the first scrapes
    page = make_prometheus(server.address, None, [])
    assert page is not None
    found = await PastReader(page, clock).read("15m", subject, "ana")
    assert found.curves.keys() >= expected.keys()
    for name in expected:
        values = found.curves[name]
        assert values[-1] is not None, name
        assert values[0] is None, name  # this Prometheus runs for seconds
        if (value := expected[name]) is not None:
            assert values[-1] == pytest.approx(value, abs=0.001), name


async def test_the_live_page_takes_only_series_with_its_label(server: Prometheus) -> None:
    clock = ManualClock()
    clock.seconds = time.time() + RANGES["15m"][1]
    page = make_prometheus(server.address, None, ["cluster=another"])
    assert page is not None
    found = await PastReader(page, clock).read("15m", Subject(), "ana")
    assert {value for values in found.curves.values() for value in values} == {None}
    empty = await PastReader(page, clock).find_empty("ana")
    assert set(empty) == set(queries(Subject(), page.labels).values())


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_choice_of_a_board_has_values(server: Prometheus, board: Board) -> None:
    for variable in board.variables:
        match = {"match[]": filled(variable.series)}
        assert server.get(f"label/{variable.label}/values", **match), variable.name


def test_no_rule_fails_on_real_text_and_every_target_is_read(server: Prometheus) -> None:
    found = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert len(found) == sum(len(group["rules"]) for group in rules()["groups"])
    assert {rule["name"]: rule.get("lastError") for rule in found if rule["health"] == "err"} == {}
    assert {each["metric"]["job"] for each in server.query("up == 1")} == set(COMPONENTS)
    assert server.query("up == 0") == []


def test_cards_have_the_names_of_their_nodes_and_are_counted_once(server: Prometheus) -> None:
    """The agents show both dialects beside their own series."""
    for name in ("tessera:gpu_temperature:celsius", "tessera:gpu_power:watts", "tessera:gpu_memory_used:bytes"):
        assert sorted(each["metric"]["node"] for each in server.query(name)) == ["n1", "n1", "n2"]


def test_a_cut_card_is_as_busy_as_its_slices(server: Prometheus) -> None:
    """Half a card that computes 0.75 of the time, and an eighth that computes 0.25 of it."""
    sizes = {each["metric"]["profile"]: float(each["value"][1]) for each in server.query("tessera:mig_size:ratio")}
    assert sizes == {"3g.40gb": 0.5, "1g.10gb": 0.125}
    values = server.query('tessera:gpu_busy:ratio * on (gpu) group_left () tessera_gpu_info{mig="true"}')
    assert [float(each["value"][1]) for each in values] == [pytest.approx(0.75 / 2 + 0.25 / 8)]


def test_holders_keep_their_names(server: Prometheus) -> None:
    """The scrape does not replace the namespace of a series by that of the agent."""
    found = {each["metric"]["namespace"]: each for each in server.query("tessera:namespace_gpu_share:sum")}
    assert found.keys() == {"team-a", "team-b", "team-c"}
    held = server.query('tessera_mig_memory_used_bytes{profile="1g.10gb"}')
    assert [(each["metric"]["namespace"], each["metric"]["pod"]) for each in held] == [("team-a", "train-1")]


#: Queries of NVIDIA's boards 12239 and 23382 and of users' rules, and what they return of dcgm-exporter (``-d f``, no
#: virtual GPUs): here of a card with two GPU instances, one with two shares, and a whole one on another node.
OF_DCGM_EXPORTER: Sequence[tuple[str, Mapping[str, float]]] = (
    ("sum by (Hostname) (DCGM_FI_DEV_FB_USED) * 1048576", {"n1": 6.0 * GIB, "n2": 0.0}),
    ("sum by (hostname) (DCGM_FI_DEV_FB_USED) * 1048576", {"n1": 6.0 * GIB, "n2": 0.0}),
    ("sum by (hostname) (DCGM_FI_DEV_FB_USED_BYTES)", {"n1": 6.0 * GIB, "n2": 0.0}),
    ("count(DCGM_FI_DEV_FB_USED)", {"": 4}),
    ('count(DCGM_FI_DEV_FB_USED{GPU_I_ID=""})', {"": 2}),
    ('count by (GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED{GPU_I_ID!=""})', {"3g.40gb": 1, "1g.10gb": 1}),
    ('count by (gpu) (DCGM_FI_DEV_GPU_TEMP{instance=~"n1", gpu=~".*"})', {"0": 2, "1": 1}),
    ('count by (exported_pod) (DCGM_FI_DEV_GPU_TEMP{GPU_I_ID!=""})', {"train-0": 1, "train-1": 1}),
    ('count by (exported_namespace) (DCGM_FI_DEV_SM_CLOCK{exported_pod!=""})', {"team-a": 2, "team-c": 1}),
    ('sum by (exported_container) (DCGM_FI_DEV_FB_USED{exported_pod=~"train-.*"})', {"main": 2048}),
    ('max by (GPU_I_PROFILE) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""})', {"3g.40gb": 0.75, "1g.10gb": 0.25}),
    ('count(DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0", hostname="n1"})', {"": 2}),
    ('count by (UUID) (DCGM_FI_DEV_GPU_UTIL{hostname="n1", gpu="0"})', {}),  # not measured in MIG mode
    (
        "round(sum by (GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)), 0.001)",
        {"3g.40gb": 0.025, "1g.10gb": 0.103, "": 0.05},
    ),
    ('count by (hostname) (DCGM_FI_DEV_ROW_REMAP_PENDING{DCGM_FI_DRIVER_VERSION!=""})', {"n1": 3, "n2": 1}),
    ('count by (Hostname) (DCGM_FI_DEV_ROW_REMAP_PENDING{DCGM_FI_SYSTEM_DRIVER_VERSION!=""})', {"n1": 3, "n2": 1}),
    (
        """abs(sum(DCGM_FI_DEV_POWER_USAGE) - sum(tessera_gpu_power_watts)
        - sum(tessera_gpu_power_watts * on (gpu) tessera_gpu_info{mig="true"})) < bool 0.001""",
        {"": 1},
    ),
)


@pytest.mark.parametrize(("expr", "expected"), OF_DCGM_EXPORTER, ids=[expr for expr, _ in OF_DCGM_EXPORTER])
def test_a_query_for_dcgm_exporter_returns_its_numbers(
    server: Prometheus, expr: str, expected: Mapping[str, float]
) -> None:
    found = {"".join(each["metric"].values()): float(each["value"][1]) for each in server.query(expr)}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_panel_shows_missing_data_as_not_available_and_never_as_zero(board: Board) -> None:
    made = json.loads((FOLDER / "grafana" / f"{board.uid}.json").read_text(encoding="utf-8"))
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    assert panels
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["noValue"] == "n/a"
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert not panel["fieldConfig"]["defaults"].get("custom", {}).get("spanNulls")
        assert panel["targets"]
        for target in panel["targets"]:
            assert "vector(" not in target["expr"]
            assert target["datasource"]["uid"] == "${datasource}"


def test_boards_have_different_names() -> None:
    assert len({board.uid for board in BOARDS}) == len({board.title for board in BOARDS}) == len(BOARDS)
    for board in BOARDS:
        titles = [panel.title for _, panels in board.rows for panel in panels]
        assert len(set(titles)) == len(titles)


def test_kubectl_renders_a_config_map_of_each_board() -> None:
    command = ["kubectl", "kustomize", str(FOLDER / "grafana")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    maps = list(yaml.load_all(done.stdout, yaml.CSafeLoader))
    assert {each["kind"] for each in maps} == {"ConfigMap"}
    assert {each["metadata"]["namespace"] for each in maps} == {NAMESPACE}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in maps} == {"1"}
    files = {name: text for each in maps for name, text in each["data"].items()}
    assert files == {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "grafana").glob("*.json")}
    # kubectl apply stores the object in an annotation of at most 256 KiB.
    assert max(len(text) for text in files.values()) < 200_000

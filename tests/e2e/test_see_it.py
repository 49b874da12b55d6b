"""What cards do, seen from outside: pages of each process through the API server, ``top`` and ``idle``."""

import json
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import IO, Any

import pytest
import yaml
from tests.support.running_lab import ROOT, TIMEOUT, RunningLab
from tests.support.terminal import Relay, on_terminal

from tessera.api.nodes.usage import AGENT_PORT


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "2xA100-40GB,1xT4", "--mig-config", "", "--virtual-time"]


@pytest.fixture(scope="module")
def used(cluster: RunningLab) -> RunningLab:
    """A lab with a pod on a slice of node-1 and a pod on the whole card of node-2."""
    cluster.kubectl("label", "node", "node-1", "nvidia.com/mig.config=dynamic")
    cluster.apply(cluster.pod("sliced", {"nvidia.com/mig-3g.20gb": 1}))
    cluster.apply(cluster.pod("whole", {"nvidia.com/gpu": 1}))
    cluster.kubectl("wait", "pod/sliced", "pod/whole", "--for=condition=Ready", "--timeout=180s")
    cluster.eventually(lambda: len(leases(cluster)) == 2)
    return cluster


def leases(cluster: RunningLab) -> list[Any]:
    found: list[Any] = json.loads(cluster.tessera("top", "-o", "json"))["pods"]
    return found


@pytest.mark.parametrize(
    ("app", "port", "series"),
    [
        ("tessera-agent", AGENT_PORT, "tessera_gpu_power_watts"),
        ("tessera-controller", 8081, "tessera_slots"),
        ("tessera-webhook", 8081, "tessera_reviews_total"),
    ],
)
def test_every_process_of_tessera_shows_metrics_on_its_own_port(
    cluster: RunningLab, app: str, port: int, series: str
) -> None:
    pods = cluster.get("pods", "-n", "tessera-system", "-l", f"app.kubernetes.io/name={app}")["items"]
    assert pods
    for pod in pods:
        status, page = cluster.read_page(f"http://{pod['status']['podIP']}:{port}/metrics", cluster.page_token())
        assert status == 200
        assert series in page


def test_top_shows_the_pods_of_slices_and_of_whole_cards(used: RunningLab) -> None:
    rows = {row["lease"]["pod"]: row for row in leases(used)}
    assert (rows["sliced"]["node"], rows["sliced"]["profile"], rows["sliced"]["lease"]["kind"]) == (
        "node-1",
        "3g.20gb",
        "slice",
    )
    assert (rows["whole"]["node"], rows["whole"]["lease"]["share"]) == ("node-2", 1.0)
    text = used.tessera("top", "--by", "cards")
    assert "simulated cards" in text
    assert "node-2/0" in text
    assert "node-1" not in used.tessera("top", "--by", "cards", "--node", "node-2")


def test_topo_shows_how_the_cards_of_a_node_and_of_a_pod_are_joined(used: RunningLab) -> None:
    rows = used.tessera("topo", "node-1").splitlines()
    assert rows[0] == "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    assert [row.split("\t")[0] for row in rows[1:3]] == ["GPU0", "GPU1"]
    assert (rows[6], rows[-1]) == ("  X    = Self", "simulated cards")
    found = json.loads(used.tessera("topo", "pod/whole", "-o", "json"))
    assert (found["node"], [card["name"] for card in found["cards"]]) == ("node-2", ["GPU0"])


def test_idle_lists_leases_whose_use_is_not_known_only_if_asked(used: RunningLab) -> None:
    shown = used.tessera("idle")
    assert "No lease is known to be unused: 0 of 2 leases on 3 cards are in use." in shown
    assert "2 leases cannot be judged" in shown
    assert "tessera idle --unknown lists them" in shown
    assert "default/whole" in used.tessera("idle", "--unknown")


@pytest.fixture(scope="module")
def counted(used: RunningLab) -> Any:
    """The record of GPU-hours, which appears after two rounds of the controller, of a minute each."""
    used.pass_time(120)

    def report() -> Any:
        done = used.run_tessera("usage", "-o", "json")
        found = json.loads(done.stdout) if done.returncode == 0 else {"rows": []}
        return found if found["rows"] and len(found["models"]) == 2 else None

    return used.eventually(report)


def test_usage_counts_the_hours_of_pods_and_sums_to_the_capacity(used: RunningLab, counted: Any) -> None:
    found = counted
    cards = found["cards"]
    assert [row["name"] for row in found["rows"]] == ["default"]
    assert cards["capacity"] == pytest.approx(sum(value for name, value in cards.items() if name != "capacity"))
    # A 3g.20gb is half of one of two A100, the other pod has the only T4.
    models = {name: hours["allocated"] / hours["capacity"] for name, hours in found["models"].items()}
    assert models == pytest.approx({"NVIDIA A100-SXM4-40GB": 0.25, "Tesla T4": 1.0}, rel=0.5)
    assert found["simulated"]
    text = used.tessera("usage", "--by", "model")
    assert "simulated cards" in text
    assert "Tesla T4" in text


def test_a_node_without_an_agent_and_an_order_that_does_not_exist_are_refused(used: RunningLab) -> None:
    assert "node 'node-9'" in used.tessera("top", "--node", "node-9", fails=True)
    assert "'size' is no order of cards" in used.tessera("top", "--by", "cards", "--sort", "size", fails=True)


@pytest.mark.usefixtures("counted")
def test_a_user_without_rights_is_told_what_an_administrator_adds(used: RunningLab) -> None:
    used.kubectl("create", "serviceaccount", "jane")
    token = used.kubectl("create", "token", "jane").strip()
    config = yaml.safe_load((used.folder / "kubeconfig").read_text())
    config["users"] = [{"name": "jane", "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = "jane"
    (used.folder / "jane").write_text(json.dumps(config))
    refused = used.tessera("top", "--kubeconfig", str(used.folder / "jane"), fails=True)
    assert "Tessera's API for tenants: tessera install --reuse --dashboard" in refused
    refused = used.tessera("usage", "--kubeconfig", str(used.folder / "jane"), fails=True)
    assert "Tessera's API for tenants: tessera install --reuse --dashboard" in refused
    binding = ("create", "rolebinding", "jane", "--clusterrole=tessera-usage-reader", "--serviceaccount=default:jane")
    used.kubectl(*binding, "-n", "tessera-system")
    assert "total" in used.tessera("usage", "--kubeconfig", str(used.folder / "jane"))
    shown = used.tessera("idle", "--unknown", "--kubeconfig", str(used.folder / "jane"))
    assert "default/whole" in shown


def test_top_is_live_on_a_terminal_until_q(used: RunningLab) -> None:
    """The table is drawn on the alternate screen, follows keys, and leaves the terminal as it was."""
    with on_terminal("top", env=used.env) as screen:
        assert "\x1b[?1049h" in screen.until("default/whole")
        screen.type("c")
        screen.until("cards by name")
        screen.type("s")
        screen.until("cards by busy")
        screen.type("/T4\r")
        screen.until("filter: T4\x1b[K")
        screen.type("q")
        assert screen.process.wait(timeout=TIMEOUT) == 0
        screen.until("\x1b[?1049l")


def test_keys_of_top_ask_about_the_pod_under_the_cursor(used: RunningLab) -> None:
    with on_terminal("top", env=used.env, columns=80, rows=24) as screen:
        screen.until("> ")
        screen.until("sliced")
        screen.type("\r")
        screen.until("why pod default/sliced")
        screen.until("runs on node node-1")
        screen.type("l")
        screen.until("log pod default/sliced")
        screen.until("simulated container")
        screen.type("d")
        screen.until("limits: nvidia.com/mig-3g.20gb 1")
        screen.until("Events:")
        screen.type("o")
        screen.until("http://localhost:8088/#q=ns:default+pod:sliced")
        screen.type("\x1b")
        screen.until("q quit")
        screen.type("c\r")
        screen.until("why node node-1")
        screen.type("qq")
        assert screen.process.wait(timeout=TIMEOUT) == 0


def test_top_says_that_the_pod_under_the_cursor_has_ended_and_what_a_key_lacks(used: RunningLab) -> None:
    used.kubectl("create", "serviceaccount", "reader")
    binding = ("create", "rolebinding", "reader", "--clusterrole=tessera-usage-reader")
    used.kubectl(*binding, "--serviceaccount=default:reader", "-n", "tessera-system")
    used.apply(used.pod("gone", {"nvidia.com/mig-1g.5gb": 1}))
    used.kubectl("wait", "pod/gone", "--for=condition=Ready", "--timeout=180s")
    used.eventually(lambda: "gone" in {row["lease"]["pod"] for row in leases(used)})
    account = "system:serviceaccount:default:reader"
    with on_terminal("top", "--as", account, "-n", "default", env=used.env) as screen:
        screen.until("default/gone")
        screen.type("/gone\rl")
        screen.until("you may not read logs in namespace default: ask an administrator for get on pods/log")
        used.kubectl("delete", "pod", "gone", "--now")
        screen.until("default/gone has ended")


@pytest.mark.parametrize(
    ("more", "live", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=str,
)
def test_top_follows_what_the_terminal_can(used: RunningLab, more: dict[str, str], live: bool, coloured: bool) -> None:
    with on_terminal("top", env={**used.env, "TERM": "xterm", **more}) as screen:
        shown = screen.until("default/whole")
        shown += screen.picture() if live else ""
        assert ("\x1b[?1049h" in shown) == live
        assert bool(re.search(r"\x1b\[3\d", shown)) == coloured
        if not live:
            assert screen.process.wait(timeout=TIMEOUT) == 0


@pytest.mark.parametrize(
    ("command", "wide"),
    [(("top",), "OWNER"), (("map", "--watch"), "node-1   2 x NVIDIA"), (("queue", "--watch"), "BEFORE IT")],
    ids=str,
)
def test_a_picture_follows_the_terminal_and_outlives_a_lost_connection(
    used: RunningLab, command: tuple[str, ...], wide: str
) -> None:
    """The last picture stays, with a note, until the API server answers again."""
    used.apply(used.pod("too-large", {"nvidia.com/mig-7g.40gb": 2}))
    config = yaml.safe_load((used.folder / "kubeconfig").read_text())
    cluster = config["clusters"][0]["cluster"]
    url = urllib.parse.urlsplit(cluster["server"])
    relay = Relay((url.hostname or "", url.port or 0))
    cluster["server"] = f"https://{url.hostname}:{relay.port}"
    path = used.folder / "relayed"
    path.write_text(yaml.safe_dump(config))
    try:
        with on_terminal(*command, "--kubeconfig", str(path), env=used.env) as screen:
            screen.until(wide)
            screen.picture()
            screen.resize(60, 20)
            used.eventually(lambda: wide not in screen.picture())
            relay.cut()
            screen.until("not up to date for")
            screen.picture()
            relay.mend()
            used.eventually(lambda: "not up to date" not in screen.picture())
            screen.process.send_signal(signal.SIGINT)
            screen.until("\x1b[?1049l")
    finally:
        relay.close()
        used.kubectl("delete", "pod", "too-large", "--now", "--ignore-not-found")


def test_the_live_page_shows_the_cards_and_follows_the_cluster(used: RunningLab) -> None:
    command = [sys.executable, "-m", "tessera", "dashboard", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=used.env, cwd=ROOT, text=True)
    try:
        assert process.stdout is not None
        url = re.search(r"http://localhost:\d+/", process.stdout.readline())
        assert url is not None
        with urllib.request.urlopen(url[0], timeout=TIMEOUT) as page:
            assert b"/assets/page.js" in page.read()
        with urllib.request.urlopen(f"{url[0]}feed", timeout=TIMEOUT) as feed:
            documents = follow(feed, lambda documents: len(cards(documents)) == 3)
            tiles = [tile for card in cards(documents) for tile in card.get("tiles", ())]
            assert [(tile["profile"], tile["leases"][0]["pod"]) for tile in tiles] == [("3g.20gb", "sliced")]
            assert documents["summary"]["simulated"]
            used.apply(used.pod("greedy", {"nvidia.com/gpu": 9}))
            follow(feed, lambda documents: "waiting/default/greedy" in documents)
        with urllib.request.urlopen(f"{url[0]}why/default/greedy", timeout=TIMEOUT) as reason:
            assert "9 nvidia.com/gpu" in json.load(reason)["answers"][0]["verdict"]
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0


def cards(documents: dict[str, Any]) -> list[Any]:
    return [document for key, document in documents.items() if key.startswith("card/")]


def follow(feed: IO[bytes], until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Reads changes until the documents are as wanted."""
    documents: dict[str, Any] = {}
    for line in feed:
        if line.startswith(b"data: "):
            change = json.loads(line.removeprefix(b"data: "))
            documents |= change["set"]
            if until(documents):
                return documents
    raise AssertionError(f"the feed ended: {documents}")


def test_map_shows_whole_cards_beside_slices(used: RunningLab) -> None:
    shown = used.tessera("map")
    assert "[a whole card" in shown
    assert "a 3g.20gb" in shown
    assert shown.endswith("simulated cards\n")
    nodes = json.loads(used.tessera("map", "-o", "json", "--held-by", "default/whole"))["nodes"]
    assert [(node["node"], len(node["cards"]), node["cards"][0]["possible"]) for node in nodes] == [
        ("node-2", 1, {"gpu": 0})
    ]
    assert "node-1" in used.tessera("map", "--free", "3g.20gb")
    refused = used.tessera("map", "--free", "7g.80gb", fails=True)
    assert "no card of this cluster can have '7g.80gb'; known are 1g.10gb" in refused
    for fact in ("7g.40gb", ", gpu or share"):
        assert fact in refused

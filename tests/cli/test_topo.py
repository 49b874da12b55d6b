"""``tessera topo``: NVIDIA's matrix of a node or of a pod's cards, and what is said where there is none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.objects import Objects, a_node, a_pod, encoded, objects, serving

from tessera.cli.main import main

HEADER = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
TOPOLOGY = {
    "cards": [{"index": n, "uuid": f"GPU-{n}", "cpus": "0-55,112-167", "numa": 0} for n in range(3)],
    "network": ["mlx5_0"],
    "rows": ["NV18 NV18 PIX", "NV18 NODE", "NODE", ""],
    "clique": "7f4a.3",
}
Served = tuple[Objects, list[str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    there = Objects()
    found = encoded(objects())
    page: dict[str, Any] = found["usage"][0]
    page |= {"topology": TOPOLOGY, "simulated": True}
    page["cards"] = [{"uuid": f"GPU-{n}", "index": n} for n in range(3)]
    page["leases"] = [{"namespace": "team", "pod": "train", "device": f"GPU-{n}"} for n in (0, 1)]
    found["pods"] += encoded([a_pod("train", node="n3"), a_pod("waits"), a_pod("idle", node="n3")])
    there.found = {**found, "nodes": encoded([a_node("n3", ready="True")]), "instaslices": []}
    with serving(there, tmp_path) as kubeconfig:
        yield there, ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize("what", [["n3"], ["node/n3"], ["node", "n3"]])
def test_a_node(server: Served, capsys: pytest.CaptureFixture[str], what: list[str]) -> None:
    assert main(["topo", *what, *server[1]]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[1] == "GPU0\t X \tNV18\tNV18\tPIX\t0-55,112-167\t0\t\tN/A"
    assert "  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n" in shown
    assert shown.endswith("clique 7f4a.3, the node's label nvidia.com/gpu.clique\nsimulated cards\n")


@pytest.mark.parametrize("what", [["train"], ["pod/train"], ["po", "train"]])
def test_the_cards_of_a_pod(server: Served, capsys: pytest.CaptureFixture[str], what: list[str]) -> None:
    assert main(["topo", *what, "-n", "team", *server[1]]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{HEADER}\nGPU0\t X \tNV18\tPIX\t")
    assert "pod train on node n3: its 2 cards are joined by 18 NVLinks (NV18)\n" in shown


def test_a_program_gets_links_by_name(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "pod/train", "-n", "team", "-o", "json", *server[1]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cards"][0] == {
        "name": "GPU0",
        "uuid": "GPU-0",
        "cpuAffinity": "0-55,112-167",
        "numaAffinity": 0,
        "gpuNumaId": None,
        "links": {"GPU1": "NV18", "NIC0": "PIX"},
    }
    assert found["network"] == [{"name": "NIC0", "device": "mlx5_0", "links": {"GPU0": "PIX", "GPU1": "NODE"}}]
    assert (found["node"], found["clique"], found["simulated"]) == ("n3", "7f4a.3", True)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (["pod/waits"], "pod team/waits has no node yet; see tessera why waits -n team"),
        (["pod/idle"], "pod team/idle holds no card of node n3; see tessera why idle -n team"),
        (["nobody"], "there is no pod 'nobody' in namespace team, and no node of that name that you may read"),
        (["node/n9"], "no agent of Tessera runs on node 'n9'"),
        (["service/x"], "'service/x' is neither NAME nor KIND/NAME; kinds are node and pod"),
        (["a", "b", "c"], "'a/b/c' is neither NAME nor KIND/NAME"),
    ],
)
def test_what_has_no_matrix(server: Served, capsys: pytest.CaptureFixture[str], what: list[str], text: str) -> None:
    assert main(["topo", *what, "-n", "team", *server[1]]) == 1
    assert text in capsys.readouterr().err


def test_an_agent_of_an_earlier_version(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    del server[0].found["usage"][0]["topology"]
    assert main(["topo", "n3", *server[1]]) == 1
    assert "the agent of node n3 does not say how its cards are joined" in capsys.readouterr().err


def test_a_matrix_that_does_not_fit_is_unknown(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    server[0].found["usage"][0]["topology"] = {**TOPOLOGY, "rows": ["NV18"]}
    assert main(["topo", "n3", *server[1]]) == 0
    shown = capsys.readouterr()
    assert "GPU0\tN/A\tN/A\tN/A\tN/A\t0-55" in shown.out
    assert "nothing is known of their links" in shown.err

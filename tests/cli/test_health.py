"""``tessera health``: text, exit codes, and errors explained."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.objects import Objects, a_node, encoded, objects, serving

from tessera.cli.health import NOT_HEALTHY
from tessera.cli.main import main


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Objects, list[str]]]:
    there = Objects()
    there.found = {**encoded(objects()), "nodes": encoded([a_node("n3", ready="True")]), "instaslices": []}
    with serving(there, tmp_path) as kubeconfig:
        yield there, ["--kubeconfig", str(kubeconfig)]


def test_a_card_that_needs_a_reset_is_shown_with_evidence_holders_and_next_step(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = server
    assert main(["health", *options]) == NOT_HEALTHY
    shown = capsys.readouterr().out
    for fact in (
        "1 card: 1 needs_reset",
        "n3/0 NVIDIA A100: needs_reset",
        "GPU instance 1: XID 48, bad; not allocated until it is reset",
        "held by team/a, process 7 (Xorg)",
        "next: reset it",
        "team/a: pcie bound: slow. copy less",
    ):
        assert fact in shown, shown


def test_the_exit_code_is_0_if_every_card_is_allocated(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    there.found["usage"][0]["cards"][0]["health"] = {"state": "healthy"}
    assert main(["health", "-o", "json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["complete"], found["counts"], found["rules"]) == (True, {"healthy": 1}, [])
    assert main(["health", *options]) == 0
    assert "n3/0" not in capsys.readouterr().out
    assert main(["health", "n3", *options]) == 0
    assert "n3/0 NVIDIA A100: healthy" in capsys.readouterr().out


def test_pods_without_a_card_hold_none_and_an_agent_may_answer_all_the_same(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = server
    assert main(["health", "-n", "other", *options]) == 0
    assert capsys.readouterr().out == "0 cards: these pods hold none\n"


def test_a_text_about_many_cards_ends_with_their_number(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    page = there.found["usage"][0]
    page["cards"] = [{**page["cards"][0], "uuid": f"GPU-{number}", "index": number} for number in range(60)]
    page["leases"] *= 60
    assert main(["health", *options]) == NOT_HEALTHY
    shown = capsys.readouterr().out
    assert "60 cards: 60 needs_reset" in shown
    assert "10 more cards on n3; see tessera health NODE" in shown
    assert "10 more; see -o json" in shown
    assert shown.count("NVIDIA A100: needs_reset") == 50


def test_a_page_about_another_node_is_no_answer(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    there.found["usage"][0]["node"] = "another"
    assert main(["health", *options]) == NOT_HEALTHY
    shown = capsys.readouterr().out
    assert "1 node without an answer" in shown
    assert "n3: unknown: its agent reports about another node" in shown


def test_nodes_that_should_answer_and_do_not_are_unknown_and_no_error_hides_them(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    there.found = encoded(objects())
    there.found["usage"][0]["cards"][0]["health"] = {"state": "healthy"}
    assert main(["health", *options]) == NOT_HEALTHY
    shown = capsys.readouterr().out
    assert "1 card: 1 healthy; 2 nodes without an answer" in shown
    assert "n1: unknown: no pod of DaemonSet tessera-system/tessera-agent is on it" in shown
    assert "next: compare the DaemonSet's selector and tolerations" in shown
    assert "n2: unknown: the node is not ready: kubelet says" in shown
    assert main(["health", "-o", "json", *options]) == NOT_HEALTHY
    found = json.loads(capsys.readouterr().out)
    assert [(each["node"], each["kind"]) for each in found["silent"]] == [("n1", "no_agent"), ("n2", "node_not_ready")]
    assert not found["complete"]
    assert main(["health", "n1", *options]) == NOT_HEALTHY
    assert "n1: unknown: no pod of DaemonSet" in capsys.readouterr().out


def test_without_any_agent_every_node_is_named(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    there.found = {**there.found, "pods": []}
    assert main(["health", *options]) == NOT_HEALTHY
    assert "n3: unknown: no pod of DaemonSet" in capsys.readouterr().out
    there.found = {**there.found, "nodes": []}
    assert main(["health", *options]) == 1
    assert "no agent of Tessera runs in this cluster; run tessera install" in capsys.readouterr().err


def test_who_may_not_read_nodes_is_told_that_some_may_be_missing(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = server
    there.found["usage"][0]["cards"][0]["health"] = {"state": "healthy"}
    there.refused = frozenset({"nodes"})
    assert main(["health", *options]) == NOT_HEALTHY
    assert "You may not read nodes" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["top", "idle"])
def test_top_and_idle_name_the_silent_nodes(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    there, options = server
    there.found = encoded(objects())
    assert main([command, *options]) == 0
    shown = capsys.readouterr().err
    assert "node n1 is not shown: no pod of DaemonSet tessera-system/tessera-agent is on it" in shown
    assert "node n2 is not shown: the node is not ready: kubelet says" in shown
    assert main([command, "-o", "json", *options]) == 0
    assert [each["node"] for each in json.loads(capsys.readouterr().out)["silent"]] == ["n1", "n2"]


def test_a_node_without_an_agent_is_an_error(
    server: tuple[Objects, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = server
    assert main(["health", "n7", *options]) == 1
    assert "no agent of Tessera runs on node 'n7'; see tessera why node/n7" in capsys.readouterr().err
    assert main(["health", "no such", *options]) == 1
    assert "see tessera why 'node/no such'" in capsys.readouterr().err


def test_an_error_is_explained_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--explain", "79"]) == 0
    assert "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS" in capsys.readouterr().out
    assert main(["health", "--explain", "79", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["asks"] == "reboot the node"
    assert main(["health", "--explain", "zz"]) == 1
    assert "'zz' is no term" in capsys.readouterr().err

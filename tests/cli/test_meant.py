"""A mistake in a name is answered with what was meant."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.objects import Objects, serving
from tests.explain.test_pods import answer, node, pod

from tessera.cli.main import main

Told = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Objects, list[str]]]:
    there = Objects()
    with serving(there, tmp_path) as kubeconfig:
        yield there, ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        (["wy", "a"], ("no command 'wy'", "did you mean 'why'?", "see 'tessera --help'")),
        (["driver", "statsu"], ("no command 'statsu'", "did you mean 'status'?", "see 'tessera driver --help'")),
        (["zzz"], ("no command 'zzz'", "the commands are map, why, queue")),
    ],
)
def test_a_mistyped_command(command: list[str], facts: tuple[str, ...], capsys: Told) -> None:
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    for fact in facts:
        assert fact in error


def test_a_missing_name_is_asked_for_in_one_line(capsys: Told) -> None:
    assert main(["config", "runtime"]) == 1
    assert capsys.readouterr().err == (
        "error: Missing argument 'RUNTIME'. Choose from: containerd, containerd-1.7, crio, docker, k3s, rke2, microk8s;"
        " see 'tessera config runtime --help'\n"
    )


def test_a_pod_that_is_a_node(server: tuple[Objects, list[str]], capsys: Told) -> None:
    there, options = server
    there.found = {
        "pods": [],
        "nodes": [{"metadata": {"name": "node-1"}}],
        "namespaces": [{"metadata": {"name": "default"}}],
    }
    assert main(["why", "node-1", *options]) == 1
    assert "There is a node of that name: tessera why node/node-1\n" in capsys.readouterr().err


def test_a_namespace_that_is_not_there(server: tuple[Objects, list[str]], capsys: Told) -> None:
    there, options = server
    there.found = {"pods": [], "deployments": [], "nodes": [], "namespaces": [{"metadata": {"name": "team-a"}}]}
    for what in ("a", "deployment/a"):
        assert main(["why", what, "-n", "taem-a", *options]) == 1
        assert 'There is no namespace "taem-a"; did you mean team-a?' in capsys.readouterr().err


def test_a_name_that_is_close(server: tuple[Objects, list[str]], capsys: Told) -> None:
    there, options = server
    there.found = {
        "pods": [{"metadata": {"name": "training", "namespace": "default"}}],
        "nodes": [],
        "namespaces": [{"metadata": {"name": "default"}}],
    }
    assert main(["why", "trianing", *options]) == 1
    assert "did you mean training?" in capsys.readouterr().err


def test_a_map_without_tessera_says_how_to_install(server: tuple[Objects, list[str]], capsys: Told) -> None:
    there, options = server
    there.found = {"nodes": []}
    assert main(["map", *options]) == 1
    assert "Tessera is not installed in this cluster" in (told := capsys.readouterr().err)
    assert "tessera install" in told


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("mig.das.com/1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("instaslice.redhat.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/gpus", "nvidia.com/mig-7g.40gb"),
        ("nvidia.con/gpu", "nvidia.com/mig-7g.40gb"),
        ("nvidia.com/mig1g5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/1g.5gb", "nvidia.com/mig-1g.5gb"),
    ],
)
def test_a_resource_under_another_name(wrong: str, right: str) -> None:
    found = answer(pod(profile="", gates=(), limits={wrong: "1"}))
    assert (found.case, found.verdict) == ("misspelt", f"cannot run as written; no node offers {wrong}")
    assert found.help[0] == f"request {right} instead of {wrong}"


def test_a_resource_that_a_node_gives_is_right_however_it_is_called() -> None:
    gives = node()
    gives.status.allocatable["nvidia.com/gpus"] = "1"
    assert answer(pod(profile="", gates=(), limits={"nvidia.com/gpus": "1"}), nodes=[gives]).case != "misspelt"


@pytest.mark.parametrize("name", ["amd.com/gpu", "cpu", "example.com/gpus", "nvidia.com/shared-gpu"])
def test_other_resources_are_none_of_ours(name: str) -> None:
    assert answer(pod(profile="", gates=(), limits={name: "1"})).case != "misspelt"


@pytest.mark.parametrize("written", ["9x1g.5gb", "1g.5gb=9", "1g.5gb=9 3g.20gb=1"])
def test_a_plan_says_how_many_were_asked_for_and_how_many_there_can_be(written: str, capsys: Told) -> None:
    assert main(["plan", "mig", "A100-40GB", *written.split()]) == 1
    assert "9 x 1g.5gb do not fit: a card holds at most 7 1g.5gb" in capsys.readouterr().err


def test_a_plan_for_a_family_says_which_model_it_took(capsys: Told) -> None:
    assert main(["plan", "mig", "A100", "1g.5gb"]) == 0
    note = capsys.readouterr().err
    assert note.count("\n") == 1
    for fact in ("note: ", "A100 is read as A100-40GB", "could also be A100-64GB or A100-80GB"):
        assert fact in note
    assert main(["plan", "mig", "A100-40GB", "1g.5gb"]) == 0
    assert capsys.readouterr().err == ""

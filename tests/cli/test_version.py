"""``tessera version``: this program, the server, and what runs in the cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.objects import Objects, serving

from tessera import __version__
from tessera.cli.main import main
from tessera.cli.version import COMMIT, _commit_of

ROOT = Path(__file__).parents[2]


def pod(name: str, app: str, image: str, *, ready: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "tessera-system", "labels": {"app.kubernetes.io/name": app}},
        "spec": {"containers": [{"image": image}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


PODS = [
    pod("a1", "tessera-agent", "r/tessera:0.2.0", ready="True"),
    pod("a2", "tessera-agent", "r/tessera:0.2.0", ready="False"),
    pod("a3", "tessera-agent", "r/tessera:0.1.0", ready="True"),
    pod("c", "tessera-controller", "r/tessera:0.2.0", ready="True"),
    pod("x", "other", "r/other", ready="True"),
]


def test_each_process_is_shown_with_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COMMIT, "abc123")
    there = Objects()
    there.found = {"pods": PODS}
    with serving(there, tmp_path) as kubeconfig:
        assert main(["version", "--kubeconfig", str(kubeconfig)]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown == [
            f"tessera      {__version__}, commit abc123",
            "Kubernetes   not known",
            "agent        r/tessera:0.1.0   1 of 1 pod ready",
            "agent        r/tessera:0.2.0   1 of 2 pods ready",
            "controller   r/tessera:0.2.0   1 of 1 pod ready",
        ]
        assert main(["version", "-o", "json", "--kubeconfig", str(kubeconfig)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["client"] == {"version": __version__, "commit": "abc123"}
        assert document["installed"][1] == {"process": "agent", "image": "r/tessera:0.2.0", "pods": 2, "ready": 1}


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (frozenset(), "Tessera is not installed"),
        (frozenset({"pods"}), "could not be read: you may not list the pods of tessera-system\n"),
    ],
)
def test_what_cannot_be_seen_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: frozenset[str], says: str
) -> None:
    there = Objects()
    there.found, there.refused = {"pods": []}, refused
    with serving(there, tmp_path) as kubeconfig:
        assert main(["version", "--kubeconfig", str(kubeconfig)]) == 0
    assert says in capsys.readouterr().out


def test_the_client_alone_contacts_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--client", "--kubeconfig", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.startswith(f"tessera      {__version__}, commit ")


def git(folder: Path, *arguments: str) -> str:
    given = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    return subprocess.run(given, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_of_a_checkout_is_gits(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    assert _commit_of(one) == ""
    git(one, "init", "-q")
    assert _commit_of(one) == "", "no commit yet"
    git(one, "commit", "-q", "--allow-empty", "-m", "first")
    git(one, "worktree", "add", "-q", str(two), "-b", "other")
    git(two, "commit", "-q", "--allow-empty", "-m", "second")
    for folder in (one, two):
        assert _commit_of(folder) == git(folder, "rev-parse", "HEAD")
    git(one, "pack-refs", "--all")
    git(two, "checkout", "-q", "--detach")
    for folder in (one, two):
        assert _commit_of(folder) == git(folder, "rev-parse", "HEAD")

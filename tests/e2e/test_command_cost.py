"""What a command loads and asks, in counts: time is measured by bench/cli.py, beside kubectl."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from tests.support.running_lab import RunningLab

#: Runs a command, and prints its modules and its requests at the end.
_PROGRAM = """
import json, sys
from tessera.cli.base.one_shot import OneShotTransport
asked, send = [], OneShotTransport.request
async def request(self, given):
    asked.append([given.method, given.path, dict(given.query)])
    return await send(self, given)
OneShotTransport.request = request
from tessera.cli.main import main
code = main(sys.argv[1:])
print(json.dumps({"code": code, "asked": asked, "modules": sorted(sys.modules)}), file=sys.stderr)
"""
#: By command: the most modules of Tessera that it may import (each version of Python has others of its own), and the
#: most requests that it may send on one node.
BUDGETS: Mapping[str, tuple[int, int]] = {
    "why runs": (41, 1),
    "why waits": (41, 1),
    "why node/node-1": (100, 6),
    "map": (71, 6),
    "queue": (61, 4),
    "top --once": (65, 5),
    "health": (64, 5),
    "idle": (63, 5),
    "usage": (46, 1),
    "topo node-1": (65, 6),
    "doctor": (73, 43),
}
#: Libraries of the cluster's processes, which no command needs.
PROCESSES = {"aiohttp", "grpc", "prometheus_client", "uvloop", "http.server", "cryptography"}


@pytest.fixture(scope="module")
def lab(cluster: RunningLab) -> RunningLab:
    for name, limits in {"runs": {"nvidia.com/mig-3g.20gb": 1}, "waits": {"nvidia.com/mig-3g.20gb": 1}}.items():
        pod = cluster.pod(name, limits)
        pod["spec"] |= {"nodeSelector": {"no": "such"}} if name == "waits" else {}
        cluster.apply(pod)
    cluster.kubectl("wait", "pod/runs", "--for=condition=Ready", "--timeout=180s")
    cluster.kubectl("wait", "apiservice/v1alpha1.view.tessera.dev", "--for=condition=Available", "--timeout=180s")
    return cluster


@pytest.mark.parametrize("command", BUDGETS)
def test_a_command_loads_and_asks_no_more_than_it_needs(lab: RunningLab, command: str) -> None:
    modules, requests = BUDGETS[command]
    environment = {**os.environ, "KUBECONFIG": str(lab.kubeconfig)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *command.split()], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stderr.splitlines()[-1])
    assert not PROCESSES & set(found["modules"])
    own = [each for each in found["modules"] if each.partition(".")[0] == "tessera"]
    assert len(own) <= modules
    assert len(found["asked"]) <= requests, found["asked"]
    every = [query for _, path, query in found["asked"] if path == "/api/v1/pods" and "fieldSelector" not in query]
    assert not every, "no command lists the pods of the whole cluster"


def test_kubectls_grammar_is_read(lab: RunningLab) -> None:
    assert 'there is no pod "nosuch" in namespace default' in lab.tessera("queue", "nosuch", fails=True)
    assert lab.tessera("install", "--show").strip() == "tessera install", "the lab's, for install --reuse"
    assert 'No pod "runs"' in lab.tessera("queue", "runs"), "it is there, and does not wait"
    assert lab.tessera("queue", "-l", "no=such", "-o", "name") == ""
    lab.kubectl("label", "pod", "runs", "waits", "app=both")
    assert lab.tessera("why", "-l", "app=both", "-o", "name").split() == ["pod/runs", "pod/waits"]
    assert lab.tessera("why", "-l", "app=both").startswith("pods default/app=both: 2 pods\n")
    assert "no pod in namespace default has the labels no=such" in lab.tessera("why", "-l", "no=such", fails=True)
    assert lab.tessera("why", "pod", "runs", "-o", "name").strip() == "pod/runs"
    assert lab.tessera("why", "po/runs", "-o", "jsonpath={.answers[*].case}").strip() == "runs"
    assert lab.tessera("map", "node/node-1", "-o", "jsonpath={.nodes[*].node}").strip() == "node-1"
    assert "state: healthy" in lab.tessera("health", "no/node-1", "-o", "yaml")
    assert "memory slots used" in lab.tessera("map", "--free", "nvidia.com/mig-1g.5gb.me")
    nobody = lab.tessera("top", "--once", "--as", "nobody", "--as-group", "none", fails=True)
    assert "--clusterrole=tessera-view --user=nobody" in nobody
    assert "Unauthorized" in lab.tessera("top", "--once", "--token", "forged", fails=True)
    assert "did not answer in time" in lab.tessera("health", "--request-timeout", "1us", fails=True)

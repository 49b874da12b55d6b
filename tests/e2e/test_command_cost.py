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
#: By command: the most modules that it may import, and the most requests that it may send on one node.
BUDGETS: Mapping[str, tuple[int, int]] = {
    "why runs": (560, 11),
    "why waits": (566, 13),
    "map": (322, 6),
    "queue": (330, 4),
    "top --once": (303, 5),
    "health": (301, 5),
    "idle": (301, 5),
    "usage": (280, 1),
}
#: Libraries of the cluster's processes, which no command needs.
PROCESSES = {"aiohttp", "grpc", "prometheus_client", "uvloop", "http.server", "cryptography"}


@pytest.fixture(scope="module")
def lab(cluster: RunningLab) -> RunningLab:
    for name, limits in {"runs": {"nvidia.com/mig-3g.20gb": 1}, "waits": {"nvidia.com/mig-3g.20gb": 1}}.items():
        pod = cluster.pod(name, limits)
        pod["spec"] |= {"nodeSelector": {"no": "such"}} if name == "waits" else {}
        cluster.kubectl("apply", "-f", "-", manifest=pod)
    cluster.kubectl("wait", "pod/runs", "--for=condition=Ready", "--timeout=180s")
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
    assert len(found["modules"]) <= modules
    assert len(found["asked"]) <= requests, found["asked"]
    every = [query for _, path, query in found["asked"] if path == "/api/v1/pods" and "fieldSelector" not in query]
    assert len(every) <= (command == "why waits"), "only what waits for room is compared with all pods"

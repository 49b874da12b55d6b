"""A lab that runs as a process of its own, driven from outside as a user does: by kubectl and the command line."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.command_line import run_tessera

from tessera_lab.daemon.lab_folder import LabState

#: Seconds that anything in the lab may take on a loaded machine of two cores.
TIMEOUT = 180.0

#: First and longest seconds between two looks. They leave the core to the lab, and let virtual time leap.
PAUSES = 0.05, 0.5

ROOT = Path(__file__).parents[2]


class RunningLab:
    """A running lab and the two programs that look at it."""

    def __init__(self, state: LabState) -> None:
        self.state = state
        self.folder = Path(state.kubeconfig).parent
        self.env = {**os.environ, "KUBECONFIG": state.kubeconfig}

    def run(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs any program as this lab's user would."""
        return subprocess.run(
            command, input=text, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT
        )

    def kubectl(self, *arguments: str, manifest: Any = None, fails: bool = False) -> str:
        """Runs kubectl and returns what it printed; standard error if it is expected to fail."""
        done = self.run("kubectl", *arguments, text=None if manifest is None else json.dumps(manifest))
        assert (done.returncode != 0) is fails, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def get(self, *arguments: str) -> Any:
        """``kubectl get ... -o json``, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def run_tessera(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line as this lab's user would."""
        return run_tessera(*arguments, env=self.env, cwd=ROOT, timeout=TIMEOUT)

    def tessera(self, *arguments: str, fails: bool = False) -> str:
        """Runs the command line and returns what it printed."""
        done = self.run_tessera(*arguments)
        assert (done.returncode != 0) is fails, f"tessera {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def eventually(self, found: Callable[[], Any]) -> Any:
        """The first true answer of ``found``; kubectl has no event for everything that a user looks at."""
        deadline = time.monotonic() + TIMEOUT
        pause = PAUSES[0]
        while True:
            answer = found()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"not within {TIMEOUT} seconds: {found}"
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    def slices(self, node: str) -> dict[str, Any]:
        """``status.podAllocationResults`` of a node."""
        found = self.get("instaslice", node, "-n", "instaslice-system")
        results: dict[str, Any] = found.get("status", {}).get("podAllocationResults") or {}
        return results

    @staticmethod
    def pod(name: str, *containers: dict[str, int], command: tuple[str, ...] = ("sleep", "infinity")) -> dict[str, Any]:
        """A pod whose containers have the given limits."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never",
                "containers": [
                    {"name": f"c{n}", "image": "busybox", "command": list(command), "resources": {"limits": limits}}
                    for n, limits in enumerate(containers)
                ],
            },
        }

"""A user of some cluster, who has a kubeconfig and the programs kubectl, Helm and tessera."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command_line import run_tessera
from tests.support.helm_program import HELM
from tests.support.object_reader import ObjectReader

#: Seconds that anything in a cluster may take: a lab on a loaded machine of two cores, or a cluster that pulls images.
TIMEOUT = 180.0

#: First and longest seconds between two looks. They leave the core to the lab, and let virtual time leap.
PAUSES = 0.05, 0.5

ROOT = Path(__file__).parents[2]


class ClusterUser:
    """Runs programs on the cluster of a kubeconfig.

    Attributes:
        kubeconfig: the file.
        env: the environment of the programs.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._reader = ObjectReader(kubeconfig)

    def run(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs any program as this cluster's user would."""
        return subprocess.run(
            command, input=text, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT
        )

    def kubectl(self, *arguments: str, manifest: Any = None, fails: bool = False) -> str:
        """Runs kubectl and returns what it printed; standard error if it is expected to fail."""
        done = self.run("kubectl", *arguments, text=None if manifest is None else json.dumps(manifest))
        assert (done.returncode != 0) is fails, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    @contextmanager
    def forwarded(self, target: str, port: int, *options: str) -> Iterator[int]:
        """A port of this machine that kubectl forwards to a port of a pod or Service."""
        command = ("kubectl", "port-forward", target, f":{port}", *options)
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) as forward:
            try:
                assert forward.stdout is not None
                found = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+\n", forward.stdout.readline())
                assert found, f"{' '.join(command)} forwards nothing"
                yield int(found[1])
            finally:
                forward.kill()

    def apply(self, manifest: Any, namespace: str | None = None) -> None:
        """Applies an object, or a ``List``, as kubectl does on the server; a start of kubectl would cost more."""
        self._reader.apply(manifest, namespace)

    def get(self, *arguments: str) -> Any:
        """What ``kubectl get ... -o json`` shows, decoded; several kinds or ``-k`` are left to kubectl itself."""
        if "," in arguments[0] or arguments[0].startswith("-"):
            return json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return self._reader.read(*arguments)

    def get_path(self, path: str) -> Any:
        """What ``kubectl get --raw`` shows of a path with a JSON document, decoded."""
        return self._reader.read_path(path)

    def helm(self, *arguments: str, fails: bool = False) -> str:
        """Runs the real Helm and returns what it printed; standard error if it is expected to fail.

        The API server alone looks at the objects: Helm's own look takes a fifth of its time.
        """
        own = ("--disable-openapi-validation",) if arguments[0] in {"install", "upgrade"} else ()
        done = self.run(HELM, *arguments, *own)
        assert (done.returncode != 0) is fails, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def run_tessera(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line as this cluster's user would."""
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

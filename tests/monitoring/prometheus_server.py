"""A real Prometheus on loopback, and queries as Grafana sends them."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

#: Grafana's variables, for the few seconds that the Prometheus of the test runs.
VALUES = {"$__rate_interval": "1m", "$__range_s": "3600", "$__range": "1h"}


class Prometheus:
    """A real Prometheus on loopback that scrapes the targets twice a second."""

    def __init__(self, folder: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        program = shutil.which("prometheus")
        assert program, "prometheus is needed: scripts/need-debian .venv/tools prometheus"
        arguments = ["--config.file=prometheus.yaml", "--storage.tsdb.path=data"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, *arguments, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
            )
        self._log = folder / "log"

    @property
    def address(self) -> str:
        """The address that a user gives."""
        return self._url.removesuffix("/api/v1")

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> Sequence[Any]:
        found: Sequence[Any] = self.get("query", query=expr)["result"]
        return found

    def wait_for(self, expr: str) -> None:
        """Waits until a query has a result."""
        for _ in range(600):
            try:
                if self.query(expr):
                    return
            except URLError:
                assert self._process.poll() is None, self._log.read_text()
            threading.Event().wait(0.1)
        pytest.fail(f"no result of {expr}: {self._log.read_text()}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def filled(expr: str) -> str:
    """An expression as Grafana sends it when all values of all variables are chosen."""
    for name, value in VALUES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$(?:node|gpu|namespace|pool)\b", ".*", expr)

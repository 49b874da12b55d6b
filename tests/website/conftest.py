"""The built site."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. Whatever would be fetched meanwhile goes to a port where nothing listens, and the build would fail."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--quiet", "--config-file", "website/mkdocs.yml", "--site-dir", str(folder)]
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    env = {**os.environ, **proxies, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder

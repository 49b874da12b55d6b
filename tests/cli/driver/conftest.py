"""Real registries with the images of the seeds, and an empty one to copy into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.driver.registry.programs import Image, registry, tool
from tests.driver.registry.servers import HTPASSWD

CERN = "510.47.03-fedora35-5.16.13-200.fc35.x86_64"

IMAGES = {
    **{
        f"nvidia/driver:510.47.03-{system}": Image()
        for system in ("centos7", "rhcos4.10", "rhcos4.9", "ubuntu18.04", "ubuntu20.04")
    },
    "nvidia/driver:525-5.15.0-69-generic-ubuntu22.04": Image(content="branch"),
    "nvidia/driver:525.125.06-ubuntu22.04": Image(("amd64", "arm64"), content="sources"),
    "nvidia/driver:535-5.15.0-69-generic-ubuntu22.04": Image(content="newer"),
    "nvidia/driver:5250-ubuntu22.04": Image(),
    "nvidia/toolkit:v1": Image(content="toolkit"),
    f"fifofonix/driver:{CERN}": Image(content="fork"),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Skopeo is in PATH, and nobody's credentials lie in the home."""
    monkeypatch.setenv("PATH", str(Path(tool("skopeo")).parent), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    with registry(folder / "storage") as running:
        running.fill(folder, IMAGES)
    return folder / "storage"


@pytest.fixture(scope="session")
def origin(filled: Path) -> Iterator[str]:
    """The host of the registry to which images are published."""
    with registry(filled) as running:
        yield running.host


@pytest.fixture(scope="session")
def locked(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same behind a password."""
    file = tmp_path_factory.mktemp("locked") / "htpasswd"
    file.write_text(HTPASSWD)
    with registry(filled, auth={"htpasswd": {"realm": "x", "path": str(file)}}) as running:
        yield running.host


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """An empty registry of a site without a way out."""
    with registry(tmp_path / "site") as running:
        yield running.host

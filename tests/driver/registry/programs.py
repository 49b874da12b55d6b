"""A real registry process, filled by skopeo with tiny images that are written here as OCI layouts."""

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

#: Seconds that a program may take to start or end on a loaded machine.
TIMEOUT = 60.0

OCI = "application/vnd.oci.image."


def tool(name: str) -> str:
    """Path of a program: this machine's, or the one that scripts/need-debian has unpacked."""
    unpacked = Path(sys.prefix) / "tools" / "bin"
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{unpacked}")
    assert found, f"{name} is not there: run scripts/need-debian .venv/tools {name}"
    return found


class Image(msgspec.Struct, frozen=True):
    """An image of one small layer for each architecture; more than one makes an index."""

    architectures: tuple[str, ...] = ("amd64",)
    content: str = "driver"
    variant: str = ""
    format: Literal["oci", "v2s2"] = "oci"
    index: bool = False


class Layout:
    """An OCI layout in a folder, of one image."""

    def __init__(self, folder: Path, image: Image) -> None:
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        entries = [self._image(image, architecture) for architecture in image.architectures]
        top: dict[str, Any] = entries[0]
        if len(entries) > 1 or image.index:
            body = {"schemaVersion": 2, "mediaType": f"{OCI}index.v1+json", "manifests": entries}
            top = self._blob(json.dumps(body).encode(), f"{OCI}index.v1+json")
        index = {"schemaVersion": 2, "manifests": [{**top, "annotations": {"org.opencontainers.image.ref.name": "x"}}]}
        (folder / "index.json").write_text(json.dumps(index))
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def _image(self, image: Image, architecture: str) -> dict[str, Any]:
        layer = f"{image.content} {architecture}".encode()
        # skopeo looks into layers only to change their format; an empty archive of zeros is a valid one.
        blob = self._blob(layer.ljust(1024, b"\0"), f"{OCI}layer.v1.tar")
        where = {"architecture": architecture, "os": "linux", **({"variant": image.variant} if image.variant else {})}
        config = self._blob(
            json.dumps({**where, "rootfs": {"type": "layers", "diff_ids": [blob["digest"]]}, "config": {}}).encode(),
            f"{OCI}config.v1+json",
        )
        body = {"schemaVersion": 2, "mediaType": f"{OCI}manifest.v1+json", "config": config, "layers": [blob]}
        return {**self._blob(json.dumps(body).encode(), f"{OCI}manifest.v1+json"), "platform": where}

    def _blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self._blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


class Registry(msgspec.Struct, frozen=True):
    """A running registry."""

    host: str

    def fill(self, folder: Path, images: Mapping[str, Image]) -> None:
        """Pushes images under ``repository:tag`` names; equal ones are made once."""
        made: dict[Image, Path] = {}
        for name, image in images.items():
            if image not in made:
                made[image] = folder / f"layout-{len(made)}"
                Layout(made[image], image)
            subprocess.run(
                [
                    *(tool("skopeo"), "copy", "-q", "--all", f"--format={image.format}", "--dest-tls-verify=false"),
                    *(f"oci:{made[image]}:x", f"docker://{self.host}/{name}"),
                ],
                check=True,
                capture_output=True,
                timeout=TIMEOUT,
            )


@contextmanager
def registry(storage: Path, **settings: Any) -> Iterator[Registry]:
    """A registry process on a free port, with its images in ``storage``; ended with the block, whatever happens.

    Args:
        storage: several processes may serve one folder that none of them writes to any more.
        settings: further top-level keys of its configuration; ``http`` is merged.
    """
    storage.mkdir(parents=True, exist_ok=True)
    config = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        **settings,
        "http": {"addr": "127.0.0.1:0", "secret": "of a test", **settings.get("http", {})},
    }
    file = storage.parent / f"registry-{len(list(storage.parent.glob('registry-*.json')))}.json"
    file.write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen(
        [tool("docker-registry"), "serve", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - no thread of ours holds a lock at this point
    )
    assert process.stdout is not None
    drain = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        port = _port(process)
        drain.start()  # what it says later is read and dropped, so that it never waits
        yield Registry(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if drain.is_alive():
            drain.join()
        process.stdout.close()


def _end_with_parent() -> None:
    """A worker that is killed takes its registries along: PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _port(process: subprocess.Popen[str]) -> int:
    """The port that the registry says it has."""
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", line)
        if found:
            return int(found[1])
    raise AssertionError(f"docker-registry ended with {process.wait()}: {''.join(said)}")

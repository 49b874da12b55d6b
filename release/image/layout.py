"""The image as an OCI layout, made by umoci: no container engine, no daemon, no rights.

One image for each platform, one layer for each tree of :mod:`release.image.root`, and an index of all platforms under
the tag of the version. ``skopeo copy --all oci:FOLDER:VERSION docker://…`` pushes it.

umoci makes no index of platforms. That is the one document that is written here: image-index of the OCI specification.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from release.image.labels import Origin
from release.image.layers import write_archive
from release.image.root import TREES, USER
from release.platforms import Platform
from release.programs import run

_INDEX = "application/vnd.oci.image.index.v1+json"
_NAME = "org.opencontainers.image.ref.name"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_layout(folder: Path, trees: Mapping[Platform, Path], origin: Origin, *, umoci: str = "umoci") -> str:
    """Writes the layout of an image for several platforms.

    Args:
        folder: must not exist.
        trees: the folder of each platform's trees, as :func:`release.image.root.build` makes them.
        origin: for labels, times and the tag.
        umoci: the program.

    Returns:
        The digest of the index.
    """
    run(umoci, "init", "--layout", str(folder), hint="install Debian's package umoci, which writes the layout")
    for platform, tree in trees.items():
        _write_image(f"{folder}:{platform.architecture}", platform, tree, origin, umoci)
    run(umoci, "gc", "--layout", str(folder))
    return _join(folder, trees, origin)


def _write_image(image: str, platform: Platform, tree: Path, origin: Origin, umoci: str) -> None:
    run(umoci, "new", "--image", image)
    run(umoci, "config", "--image", image, "--no-history", *_settings(platform, origin))
    for name in TREES:
        with TemporaryDirectory() as work:
            archive = Path(work, f"{name}.tar")
            write_archive(tree / name, archive, seconds=origin.seconds)
            history = ("--history.created", origin.created, "--history.created_by", f"python -m release image: {name}")
            run(umoci, "raw", "add-layer", "--image", image, *history, str(archive))


def _settings(platform: Platform, origin: Origin) -> Iterator[str]:
    yield from ("--os", platform.os, "--architecture", platform.architecture, "--created", origin.created)
    yield from ("--config.user", f"{USER}:{USER}", "--config.entrypoint", "tessera", "--config.env", f"PATH={_PATH}")
    yield from ("--config.env", f"TESSERA_COMMIT={origin.revision}", "--config.workingdir", "/")
    for name, value in sorted(origin.labels().items()):
        yield from ("--config.label", f"{name}={value}")


def _join(folder: Path, platforms: Sequence[Platform] | Mapping[Platform, Path], origin: Origin) -> str:
    """Replaces the images' tags by one tag of an index of them all."""
    document = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    images = {each["annotations"][_NAME]: each for each in document["manifests"]}
    body: dict[str, Any] = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": []}
    for platform in platforms:
        entry = {key: images[platform.architecture][key] for key in ("mediaType", "digest", "size")}
        body["manifests"].append(entry | {"platform": {"architecture": platform.architecture, "os": platform.os}})
    content = json.dumps(body, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(content)
    entry = {
        "mediaType": _INDEX,
        "digest": f"sha256:{digest}",
        "size": len(content),
        "annotations": {_NAME: origin.version},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}), encoding="utf-8")
    return f"sha256:{digest}"

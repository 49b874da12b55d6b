"""The plugin's entry in krew's index (``tessera-gpu.yaml``): address and hash of each platform's archive."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.image.labels import Origin
from release.platforms import Platform
from release.plugin.archives import LICENSE, PROGRAM, archive_name

#: In krew's index ``tessera`` is another project's; krew's users run ``kubectl tessera-gpu``.
NAME = "tessera-gpu"
_DESCRIPTION = """\
Shows which pods hold which NVIDIA cards, MIG slices and shares, why a pod waits for one, and what a node's cards do.
Installs, checks and configures Tessera, a GPU service for Kubernetes.
"""
_CAVEATS = """\
Needs Python 3.11 to 3.14 in PATH (python3.11, python3.12, ..., or python3). The first run takes some seconds: it
unpacks into ~/.cache/pex.
Completion: copy kubectl_complete-tessera from the archive into a folder of PATH, or run
  kubectl tessera completion kubectl
"""


def manifest(archives: Mapping[Platform, Path], origin: Origin, *, downloads: str) -> dict[str, Any]:
    """The manifest of a release.

    Args:
        archives: by platform.
        origin: of the release.
        downloads: address of the folder from which users load the archives.
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{origin.version}",
            "homepage": origin.source or downloads,
            "shortDescription": "Show and explain GPUs, MIG slices and shares",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [_platform(each, file, origin, downloads) for each, file in archives.items()],
        },
    }


def _platform(platform: Platform, archive: Path, origin: Origin, downloads: str) -> dict[str, Any]:
    return {
        "selector": {"matchLabels": {"os": platform.os, "arch": platform.architecture}},
        "uri": f"{downloads.rstrip('/')}/{archive_name(platform, origin)}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "files": [{"from": name, "to": "."} for name in (PROGRAM, LICENSE)],
        "bin": PROGRAM,
    }

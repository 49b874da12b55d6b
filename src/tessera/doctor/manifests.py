"""The manifests that install Tessera, the files of ``deploy/``, as objects.

Supports only the parts of kustomize in ``deploy/kustomization.yaml``: the list of ``resources`` and the image tags.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tessera import __version__

#: Beside the package in a wheel, at the top of the repository in a checkout.
_PLACES = (Path(__file__).parents[1] / "_deploy", Path(__file__).parents[3] / "deploy")

#: The file of the live page and of the API for tenants, which an installation can leave out.
PAGE = "options/dashboard/dashboard.yaml"
#: libyaml's where PyYAML has them: ten times as fast. For our own files only: a text of others that is nested deeply
#: overflows libyaml's stack and ends the process.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

#: The image that the manifests name. Nobody has published it: only a lab runs it, or a node into which it was loaded.
UNPUBLISHED = "tessera"
#: What to do first, for each form of the installation.
BUILD_IMAGE = (
    f"nobody has published the image {UNPUBLISHED}, so no node can pull it; in a checkout, build it and push it to your"
    f" registry: podman build -t REGISTRY/{UNPUBLISHED}:{__version__} . && podman push"
    f" REGISTRY/{UNPUBLISHED}:{__version__}"
)


def deploy_folder() -> Path:
    """Returns the folder of the manifests.

    Raises:
        FileNotFoundError: this installation has no manifests.
    """
    for place in _PLACES:
        if (place / "kustomization.yaml").is_file():
            return place
    raise FileNotFoundError(f"no deploy manifests at {' or '.join(map(str, _PLACES))}; the installation is incomplete")


def install_manifests() -> list[dict[str, Any]]:
    """Returns the objects of ``kubectl apply -k deploy/`` in the order of the files, without the live page."""
    folder = deploy_folder()
    objects: list[dict[str, Any]] = []
    for resource in _kustomization()["resources"]:
        objects += () if resource == PAGE else read_manifests(folder / resource)
    return tag_images(objects)


def page_manifests() -> list[dict[str, Any]]:
    """Returns the objects of the live page and of the API for tenants, one process."""
    return tag_images(read_manifests(deploy_folder() / PAGE))


def read_manifests(file: Path) -> list[dict[str, Any]]:
    """Returns the objects of one of our files, in its order."""
    objects: list[dict[str, Any]] = msgspec.json.decode(_json_of(file.read_text(encoding="utf-8")))
    return objects


def format_manifests(objects: Iterable[dict[str, Any]]) -> str:
    """Returns the objects as YAML, each a document of its own."""
    text: str = yaml.dump_all(objects, Dumper=_DUMPER, sort_keys=False, width=120, explicit_start=True)
    return text


def tag_images(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives the images of the objects' containers the tags of ``deploy/kustomization.yaml``; returns the objects."""
    tags = {image["name"]: image["newTag"] for image in _kustomization().get("images", ())}
    for each in objects:
        for container in _containers(each):
            container["image"] = _tagged(container["image"], tags)
    return objects


def _kustomization() -> dict[str, Any]:
    text = (deploy_folder() / "kustomization.yaml").read_text()
    found: dict[str, Any] = yaml.load(text, _LOADER)  # noqa: S506 - a safe one
    return found


@lru_cache(maxsize=64)
def _json_of(text: str) -> bytes:
    """The objects of a YAML text as a JSON list; decoding it for each caller takes a tenth of the time."""
    return msgspec.json.encode([each for each in yaml.load_all(text, _LOADER) if each])


def images(manifests: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields the images of all containers in the manifests."""
    for each in manifests:
        for container in _containers(each):
            yield container["image"]


def _containers(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())


def _tagged(image: str, tags: dict[str, str]) -> str:
    return f"{image}:{tags[image]}" if image in tags else image

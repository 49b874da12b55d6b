"""A bundle as it lies in a folder."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Obj = Mapping[str, Any]
CSV_KIND, CRD_KIND = "ClusterServiceVersion", "CustomResourceDefinition"


class Bundle(NamedTuple):
    """The content of a bundle.

    Attributes:
        manifests: the objects by the name of their file.
        annotations: those of ``metadata/annotations.yaml``; None if there is no such file.
        labels: those of the image, from ``bundle.Dockerfile``.
        scorecard: the configuration of the scorecard; None if there is none.
        compressed: bytes of the manifests and the metadata, packed as one archive.
    """

    manifests: Mapping[str, Sequence[Obj]]
    annotations: Mapping[str, str] | None
    labels: Mapping[str, str]
    scorecard: Obj | None
    compressed: int

    @property
    def objects(self) -> Sequence[Obj]:
        """All objects."""
        return [each for objects in self.manifests.values() for each in objects]

    def of_kind(self, kind: str) -> Sequence[Obj]:
        """The objects of one kind."""
        return [each for each in self.objects if each.get("kind") == kind]

    @property
    def csv(self) -> Obj:
        """The ClusterServiceVersion; an empty one if there is none."""
        return next(iter(self.of_kind(CSV_KIND)), {})

    @property
    def spec(self) -> Obj:
        """The specification of the ClusterServiceVersion."""
        return self.csv.get("spec") or {}

    @property
    def csv_annotations(self) -> Mapping[str, str]:
        """The annotations of the ClusterServiceVersion."""
        return self.csv.get("metadata", {}).get("annotations") or {}

    @property
    def owned(self) -> Sequence[Obj]:
        """The descriptions of the definitions that the bundle owns."""
        return (self.spec.get("customresourcedefinitions") or {}).get("owned") or ()

    @property
    def strategy(self) -> Obj:
        """The specification of the install strategy."""
        return (self.spec.get("install") or {}).get("spec") or {}


def read_bundle(folder: Path) -> Bundle:
    """Reads a bundle.

    Raises:
        yaml.YAMLError: a file is no YAML.
        OSError: a file cannot be read.
    """
    manifests = {file.name: _objects(file) for file in sorted((folder / "manifests").glob("*"))}
    metadata = folder / "metadata" / "annotations.yaml"
    annotations = None
    if metadata.is_file():
        annotations = (next(iter(_objects(metadata)), {})).get("annotations") or {}
    config = folder / "tests" / "scorecard" / "config.yaml"
    scorecard = next(iter(_objects(config)), None) if config.is_file() else None
    return Bundle(manifests, annotations, _labels(folder / "bundle.Dockerfile"), scorecard, _compressed(folder))


def _objects(file: Path) -> Sequence[Obj]:
    return [each for each in yaml.load_all(file.read_text(encoding="utf-8"), yaml.CSafeLoader) if each]


def _labels(file: Path) -> Mapping[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
    pairs = (each.removeprefix("LABEL ").partition("=") for each in lines if each.startswith("LABEL "))
    return {key: value for key, _, value in pairs}


def _compressed(folder: Path) -> int:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for part in ("manifests", "metadata"):
            if (folder / part).is_dir():
                archive.add(folder / part, part)
    return len(gzip.compress(packed.getvalue(), mtime=0))

"""What the chart renders is valid on every supported Kubernetes."""

from pathlib import Path

import pytest
import yaml
from charts.files import FOLDER
from tests.charts.conftest import Helm
from tests.support.kubernetes_schemas import validate

SUPPORTED = tuple(f"1.{minor}" for minor in range(31, 38))
VALUES = sorted((FOLDER / "ci").glob("*-values.yaml"))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_every_object_is_valid_with_no_unknown_field(file: Path, helm: Helm) -> None:
    objects = helm.template(yaml.safe_load(file.read_text(encoding="utf-8")), "gpu")
    assert objects
    for version in SUPPORTED:
        for manifest in objects:
            validate(manifest, version)

"""The value tessera.repairs becomes the ConfigMap that controller and agents read, as tessera install writes it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.api.nodes.test_repairs import FILE, MISTAKES
from tests.charts.conftest import Helm, install

from tessera.api.names import REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.repairs import Repairs, parse_repairs
from tessera.cli.install.operator_process import read_choices

FOLDER = Path(__file__).parents[2] / "charts" / "tessera"


def config_maps(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", REPAIRS_MAP)]


def test_all_forms_have_the_file_of_the_administrator(helm: Helm, tmp_path: Path) -> None:
    (file := tmp_path / "repairs.yaml").write_text(FILE, encoding="utf-8")
    (chart,) = config_maps(helm.template({"tessera": {"repairs": yaml.safe_load(FILE)}}, "tessera-system"))
    (command,) = config_maps(install(tmp_path, "--repairs", str(file)))
    assert chart["metadata"]["namespace"] == command["metadata"]["namespace"] == "tessera-system"
    found = [parse_repairs(each["data"][REPAIRS_KEY]) for each in (chart, command)]
    assert found == [msgspec.convert(yaml.safe_load(FILE), Repairs)] * 2
    assert read_choices({REPAIRS_KEY: FILE}, "").repairs == FILE


@pytest.mark.parametrize("value", [{}, None])
def test_without_the_value_there_is_no_config_map_and_one_made_by_hand_stays(value: Any, helm: Helm) -> None:
    assert config_maps(helm.template({"tessera": {"repairs": value}}, "tessera-system")) == []


@pytest.mark.parametrize("text", [each for each in MISTAKES if "twice" not in MISTAKES[each][0]])
def test_helm_refuses_what_the_processes_would(text: str, helm: Helm) -> None:
    values = {"tessera": {"repairs": yaml.safe_load(text)}}
    done = helm.run("template", "tessera", str(FOLDER), values=values)
    assert done.returncode, done.stdout[:200]
    assert "repairs" in done.stderr

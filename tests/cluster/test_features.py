"""Each satellite can be left out: the core imports none, and gives slices without any."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.cli.controller import parse_options
from tessera.features import FEATURES, JOINING, Feature
from tessera.kube.resources import DEPLOYMENTS

ROOT = Path(__file__).parents[2]
NAMES = [each.name for each in JOINING]
LEFT_OUT = [*([name] for name in NAMES), NAMES]
#: Options by which a satellite has something to do.
NEEDED = {"claims": ["--claim-driver=gpu.tessera.dev"]}
#: Imports what the first argument names, while the packages of the others cannot be imported.
PROGRAM = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(name == each or name.startswith(each + ".") for each in sys.argv[3:]):
            raise ImportError("left out: " + name)

sys.meta_path.insert(0, Missing())
for module in sys.argv[1].split(","):
    importlib.import_module(module)
if sys.argv[2]:
    from tessera.cli.controller import parse_options
    print(*[type(each).__name__ for each in parse_options(sys.argv[2].split(","), {"POD_NAME": "p"}).satellites])
"""
PROCESSES = "tessera.controller.main.run,tessera.agent.main.lifecycle,tessera.webhook.main.run"


def packages(feature: Feature) -> list[str]:
    """Its packages, as Python names them."""
    found = [Path(each) for each in feature.folders if each.startswith("src/")]
    return [".".join(each.relative_to("src").parts) for each in found]


def start(modules: str, arguments: Sequence[str], missing: Sequence[str]) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, modules, ",".join(arguments), *missing]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_every_folder_of_a_feature_exists_and_belongs_to_one() -> None:
    folders = [folder for each in FEATURES for folder in each.folders]
    assert [each for each in folders if not (ROOT / each).is_dir()] == []
    assert len(folders) == len(set(folders))


def test_the_core_imports_no_satellite() -> None:
    satellites = {package for each in FEATURES for package in packages(each)}
    of_satellites = {f"src/{each.replace('.', '/')}" for each in satellites}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src" / "tessera").rglob("*.py")
        if path.name != "__main__.py" and not any(str(path).startswith(f"{ROOT}/{each}/") for each in of_satellites)
        for name in imports(path)
        if any(name == each or name.startswith(f"{each}.") for each in satellites)
    ]
    assert wrong == []


def imports(path: Path) -> set[str]:
    """The modules that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def test_the_processes_start_where_no_satellite_is_installed() -> None:
    assert start(PROCESSES, (), [package for each in FEATURES for package in packages(each)]) == []


@pytest.mark.parametrize("names", LEFT_OUT, ids="+".join)
def test_a_controller_leaves_out_what_is_not_installed(names: Sequence[str]) -> None:
    needed = [each for name in NAMES if name not in names for each in NEEDED.get(name, ())]
    arguments = [*needed, *(f"--without={name}" for name in names)]
    missing = [package for each in JOINING if each.name in names for package in packages(each)]
    everything = [each for options in NEEDED.values() for each in options]
    all_of_them = [type(each).__name__ for each in parse_options(everything, {"POD_NAME": "p"}).satellites]
    assert start(PROCESSES, arguments, missing) == [
        kind for name, kind in zip(NAMES, all_of_them, strict=True) if name not in names
    ]


@pytest.mark.parametrize("names", LEFT_OUT, ids="+".join)
def test_a_pod_gets_its_slice_without_a_satellite(in_lab: InLab, names: Sequence[str]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        found = await lab.client.get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
        (container,) = found["spec"]["template"]["spec"]["containers"]
        container["args"] = [*container["args"], *(f"--without={name}" for name in names)]
        spec = {"template": {"spec": {"containers": [container]}}}
        await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "tessera-controller", {"spec": spec}, "tessera-system")
        await lab.clock.sleep(60)
        await lab.create("works", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("works")
        await lab.delete("works")
        await lab.empty()

    in_lab(scenario, "1xA100-40GB")

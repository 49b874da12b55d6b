"""Each satellite can be left out: the core imports none, and gives slices without any."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.cli.base.features import FEATURES, JOINING, Feature
from tessera.cli.controller import parse_options
from tessera.kube.resources import DEPLOYMENTS

ROOT = Path(__file__).parents[2]
NAMES = [each.name for each in JOINING]
LEFT_OUT = [*([name] for name in NAMES), NAMES]
#: Options by which a satellite has something to do.
NEEDED = {"claims": ["--claim-driver=gpu.tessera.dev"]}
#: Imports what the first list names while the packages of the second cannot be imported; then, of each case, the
#: satellites of a controller with these options while these packages cannot be imported.
PROGRAM = """
import importlib, json, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    packages = ()

    def has(self, name):
        return any(name == each or name.startswith(each + ".") for each in self.packages)

    def find_spec(self, name, path, target=None):
        if self.has(name):
            raise ImportError("left out: " + name)

missing = Missing()
sys.meta_path.insert(0, missing)
modules, satellites, cases = json.load(sys.stdin)
missing.packages = satellites
for module in modules:
    importlib.import_module(module)
found = []
for arguments, packages in cases:
    missing.packages = satellites
    for name in [name for name in sys.modules if missing.has(name)]:
        del sys.modules[name]
    missing.packages = packages
    from tessera.cli.controller import parse_options
    found.append([type(each).__name__ for each in parse_options(arguments, {"POD_NAME": "p"}).satellites])
print(json.dumps(found))
"""
PROCESSES = ["tessera.controller.main", "tessera.agent.lifecycle", "tessera.webhook.main"]


def packages(feature: Feature) -> list[str]:
    """Its packages and modules, as Python names them."""
    found = [Path(each) for each in feature.folders if each.startswith("src/")]
    return [".".join(each.relative_to("src").with_suffix("").parts) for each in found]


def test_every_folder_of_a_feature_exists_and_belongs_to_one() -> None:
    folders = [folder for each in FEATURES for folder in each.folders]
    assert [each for each in folders if not (ROOT / each).exists()] == []
    assert len(folders) == len(set(folders))


def test_the_core_imports_no_satellite() -> None:
    satellites = {package for each in FEATURES for package in packages(each)}
    places = [f"{ROOT}/src/{each.replace('.', '/')}" for each in satellites]
    of_satellites = tuple(f"{each}{end}" for each in places for end in ("/", ".py"))
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src" / "tessera").rglob("*.py")
        if path.name != "__main__.py" and not str(path).startswith(of_satellites)
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


def options_of(names: Iterable[str]) -> list[str]:
    """The options by which these satellites have something to do."""
    return [each for name in names for each in NEEDED.get(name, ())]


def test_processes_start_where_no_satellite_is_installed_and_a_controller_leaves_out_what_is_not() -> None:
    everything = [package for each in FEATURES for package in packages(each)]
    cases = [
        (
            [*options_of(name for name in NAMES if name not in names), *(f"--without={name}" for name in names)],
            [package for each in JOINING if each.name in names for package in packages(each)],
        )
        for names in LEFT_OUT
    ]
    asked = json.dumps([PROCESSES, everything, cases])
    ran = subprocess.run([sys.executable, "-c", PROGRAM], input=asked, check=True, capture_output=True, text=True)
    all_of_them = [type(each).__name__ for each in parse_options(options_of(NAMES), {"POD_NAME": "p"}).satellites]
    assert json.loads(ran.stdout) == [
        [kind for name, kind in zip(NAMES, all_of_them, strict=True) if name not in names] for names in LEFT_OUT
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

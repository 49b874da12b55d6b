"""The pages for readers of the source name files that exist, and its layers in the order that import-linter checks."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tessera.cli.base.features import FEATURES

ROOT = Path(__file__).parents[2]
HOW_IT_WORKS = ROOT / "docs" / "how-it-works.md"
#: Modules of other projects that pages name as a source.
OTHERS = {"vllm/platforms/interface.py"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Ends of names in backticks that are paths of this tree.
PATH = re.compile(r"`([\w./-]+(?:\.py|\.toml|\.yaml|\.md|/))`")


@cache
def _tree() -> set[str]:
    """Every file and folder of the tree that is not made by a build; folders end with a slash."""
    roots = [each for each in ROOT.iterdir() if not each.name.startswith(".")]
    found = roots + [each for root in roots for each in root.rglob("*") if "__pycache__" not in each.parts]
    return {f"{each.relative_to(ROOT)}/" if each.is_dir() else str(each.relative_to(ROOT)) for each in found}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/how-it-works.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    tree = _tree()
    named = set(PATH.findall((ROOT / page).read_text(encoding="utf-8")))
    assert named
    assert {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in tree)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    tree = {path for path in _tree() if path.endswith(".py")}
    named = {name for name in PATH.findall(page.read_text(encoding="utf-8")) if name.endswith(".py")} - OTHERS
    assert {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in tree)} == set()


def test_how_it_works_lists_the_layers_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [{name.strip().removeprefix("tessera.") for name in layer.split("|")} for layer in contracts[0]["layers"]]
    listed = HOW_IT_WORKS.read_text(encoding="utf-8").partition("Layers, from the top:\n\n")[2].partition("\n\n")[0]
    rows = [set(re.findall(r"`([\w]+)`", line.split(": ")[0])) for line in listed.splitlines()]
    assert rows == layers


def test_how_it_works_names_every_folder_of_the_agent() -> None:
    text = HOW_IT_WORKS.read_text(encoding="utf-8")
    folders = {each.parent.name for each in (ROOT / "src/tessera/agent").glob("*/__init__.py")} - {"base"}
    assert {name for name in folders if f"`{name}`" not in text and f"`{name}/`" not in text} == set()


def test_how_it_works_lists_every_satellite_as_the_source_does() -> None:
    rows = []
    for each in FEATURES:
        places = (place if place.endswith(".py") else f"{place}/" for place in each.folders)
        rows.append(f"| {each.name} | {', '.join(f'`{place}`' for place in places)} | {each.text} | {each.off} |")
    table = HOW_IT_WORKS.read_text(encoding="utf-8").partition("| satellite | folders |")[2].partition("\n\n")[0]
    assert table.strip().splitlines()[2:] == rows


#: A reference to a module or a name of it, in full or, of a module, by its end.
REFERENCE = re.compile(r":(mod|class|func|data|attr|meth|exc):`~?(?:[^<`]*<)?([A-Za-z_][\w.]*)>?`")
#: A definition of a name in a module, or of an attribute.
DEFINED = r"^ *(?:async def |def |class |self\.)?%s\b"


@pytest.mark.parametrize("package", ["tessera", "tessera_lab"])
def test_every_module_and_name_that_the_source_refers_to_exists(package: str) -> None:
    modules = {
        path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in _tree()
        if path.startswith("src/") and path.endswith(".py")
    }
    ends = {name.rpartition(".")[2] for name in modules}
    texts = {name: (ROOT / path).read_text(encoding="utf-8") for name, path in modules.items()}
    for name, text in texts.items():
        for kind, found in REFERENCE.findall(text) if name.partition(".")[0] == package else ():
            if not found.startswith(("tessera.", "tessera_lab.")):
                assert kind != "mod" or found.rpartition(".")[2] in ends, f"{name} refers to the module {found}"
                continue
            module = found
            while module not in modules:
                module = module.rpartition(".")[0]
            names = found[len(module) + 1 :].split(".")
            missing = [each for each in names if each and not re.search(DEFINED % each, texts[module], re.MULTILINE)]
            assert not missing, f"{name} refers to {found}, but {module} has no {missing[0]}"

"""What users get names only the hosts, packages and images that the project refers to on purpose.

A name that the project does not own may belong to a stranger tomorrow: who follows the text runs the stranger's code.
The names of API groups and labels, such as ``tessera.dev/cards``, are no links: they have no scheme.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitoring.manifests import RUNBOOKS, rules
from release.plugin.manifest import NAME as PLUGIN

ROOT = Path(__file__).parents[2]
#: What users read, apply or run, and what it is made from.
PARTS = (
    "README.md",
    "CONTRIBUTING.md",
    "bundle",
    "charts",
    "deploy",
    "docs",
    "examples",
    "monitoring",
    "src",
    "web/src",
    "website/mkdocs.yml",
)
SUFFIXES = {".html", ".json", ".md", ".py", ".sh", ".svg", ".tpl", ".ts", ".tsx", ".txt", ".yaml", ".yml"}
_HOST = re.compile(r"https?://((?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})\b")
#: Names that nobody can own (RFC 2606, RFC 6761), and those of a cluster's own services.
_NOBODYS = re.compile(r"(.+\.)?example(\.com|\.net|\.org)?|.+\.(test|invalid|localhost)|.+\.svc(\.cluster\.local)?")
#: The others, and what for.
HOSTS = {
    "developer.download.nvidia.com": "packages that builds of driver images download",
    "github.com": "issues and designs of Kubernetes that decisions cite",
    "json-schema.org": "name of the language of the values' schema",
    "kind.sigs.k8s.io": "the page of kind",
    "kubernetes.io": "documentation of Kubernetes",
    "kueue.sigs.k8s.io": "documentation of Kueue",
    "kured.dev": "documentation of a program that reboots nodes",
    "us.download.nvidia.com": "drivers that builds of driver images download",
    "www.redhat.com": "an article that the docs cite",
    "www.usenix.org": "a paper that the docs cite",
    "www.w3.org": "name of the language of pictures",
}

#: Commands that bring code by a name from an index, and the name.
_INSTALL = re.compile(
    r"\b(?:pip3?|pipx|uv tool|uv pip|krew|brew|snap|npm|cargo)\s+(?:install|add|i)\s+(?:-\S+\s+)*([\w@./-]+)"
    r"|\b(?:uvx|npx|pipx run)\s+([\w@./-]+)|\bhelm repo add\s+(\S+)"
)
#: Images of public registries, with the owner of the name there.
_IMAGE = re.compile(
    r"\b((?:docker\.io|quay\.io|ghcr\.io|gcr\.io|nvcr\.io|registry\.k8s\.io|registry\.redhat\.io)/[\w-]+)/?"
)
IMAGES = {
    "docker.io/library": "base images of distributions",
    "nvcr.io/nvidia": "NVIDIA's images",
    "quay.io/buildah": "the program that builds driver images in a cluster",
    "quay.io/jupyter": "an example's notebook",
    "quay.io/operator-framework": "the tests of operators",
    "quay.io/vemporop": "the driver images of the article that an example repeats",
    "registry.k8s.io/kueue": "Kueue",
    "registry.k8s.io/pause": "the container of placeholder pods",
    "registry.redhat.io/nvidia": "NVIDIA's drivers at Red Hat",
}


def files() -> Iterator[Path]:
    for part in PARTS:
        top = ROOT / part
        yield from [top] if top.is_file() else (path for path in top.rglob("*") if path.suffix in SUFFIXES)


def hosts(text: str) -> set[str]:
    return {host for host in _HOST.findall(text) if not _NOBODYS.fullmatch(host)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://tessera.dev/docs", {"tessera.dev"}),
        ("http://nvidia.com:80, HTTP", {"nvidia.com"}),
        ("tessera.dev/cards", set()),
        ("https://gpu.example.com https://wiki.example/a http://localhost:80 https://HOST http://10.0.0.1", set()),
    ],
)
def test_a_link_has_a_scheme_and_a_host_that_somebody_can_own(text: str, found: set[str]) -> None:
    assert hosts(text) == found


def test_links_lead_only_to_hosts_that_are_meant() -> None:
    found: dict[str, str] = {}
    for path in files():
        for host in hosts(path.read_text(encoding="utf-8")):
            found[host] = str(path.relative_to(ROOT))
    assert {host: path for host, path in found.items() if host not in HOSTS} == {}
    assert set(HOSTS) == set(found), "a host that nothing links to any more"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("after: pip install tessera", ["tessera"]),
        ("pip install -U --quiet tessera-gpu", ["tessera-gpu"]),
        ("run pip install ./ ./packaging/tessera-lab", ["./"]),
        ("kubectl krew install tessera", ["tessera"]),
        ("uvx tessera-gpu; helm repo add tessera", ["tessera-gpu", "tessera"]),
    ],
)
def test_a_command_that_installs_is_found_with_its_name(text: str, found: list[str]) -> None:
    assert installed(text) == found


def installed(text: str) -> list[str]:
    return ["".join(each) for each in _INSTALL.findall(text)]


def test_no_text_installs_a_package_by_a_name_from_an_index() -> None:
    """Nothing of the project is published, so each such name is, or can become, a stranger's."""
    assert [
        (str(path.relative_to(ROOT)), name)
        for path in files()
        for name in installed(path.read_text(encoding="utf-8"))
        if not name.startswith("./")
    ] == []


def test_images_of_public_registries_are_of_owners_that_are_meant() -> None:
    found: dict[str, str] = {}
    for path in files():
        for owner in _IMAGE.findall(path.read_text(encoding="utf-8")):
            found[owner] = str(path.relative_to(ROOT))
    assert {owner: path for owner, path in found.items() if owner not in IMAGES} == {}
    assert set(IMAGES) == set(found), "an owner that nothing names any more"


def test_the_packages_have_names_that_no_other_project_has() -> None:
    projects = (ROOT / "pyproject.toml", ROOT / "packaging/tessera-lab/pyproject.toml")
    names = [tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"] for project in projects]
    assert [*names, PLUGIN] == ["tessera-gpu", "tessera-gpu-lab", "tessera-gpu"]


def test_alerts_name_their_pages_in_this_repository() -> None:
    pages = [
        rule["annotations"]["runbook_url"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert pages
    assert all(page.startswith(f"{RUNBOOKS}/") and (ROOT / page).is_file() for page in pages)

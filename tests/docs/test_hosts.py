"""Everything that users get links only to hosts that the project refers to on purpose.

The names of API groups and labels, such as ``tessera.dev/cards``, are no links: they have no scheme.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitoring.manifests import RUNBOOKS, rules

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
    "kubernetes.io": "documentation of Kubernetes",
    "kueue.sigs.k8s.io": "documentation of Kueue",
    "kured.dev": "documentation of a program that reboots nodes",
    "us.download.nvidia.com": "drivers that builds of driver images download",
    "www.redhat.com": "an article that the docs cite",
    "www.usenix.org": "a paper that the docs cite",
    "www.w3.org": "name of the language of pictures",
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


def test_alerts_name_their_pages_in_this_repository() -> None:
    pages = [
        rule["annotations"]["runbook_url"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert pages
    assert all(page.startswith(f"{RUNBOOKS}/") and (ROOT / page).is_file() for page in pages)

"""What the pages say of the program is what the program has: links, options, metrics, conditions."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tessera.agent.metrics import MemoryUse, Metrics
from tessera.agent.ondemand.facts import Journal
from tessera.agent.ondemand.slices import Book
from tessera.agent.telling.conditions import TYPES
from tessera.api.driver.status import ADVERTISED_CONDITION as ADVERTISED
from tessera.cli.agent import command
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.milestones import Milestone
from tessera.provisioning.startup import BLOCKING, STARTUP_TAINT

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "user-guide.md"
#: Options that are about the process and not about what it does, or that only simulated cards have.
UNTOLD = {"--help", "--kubeconfig", "--context", "--log-level", "--node-name", "--simulate", "--simulated-state"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_list_of_decisions_has_every_page_once() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in folder.glob("*.md") if path.stem != "README")


def test_the_user_guide_has_every_option_of_the_agent() -> None:
    options = {each.opts[0] for each in command.params} - UNTOLD
    assert {option for option in options if f"`{option}`" not in GUIDE.read_text(encoding="utf-8")} == set()


def test_the_user_guide_has_every_metric_of_the_agent() -> None:
    metrics = Metrics()
    metrics.show(Book(Journal()))
    metrics.show_health(lambda: {"GPU-1": 0})
    metrics.show_memory(lambda: [MemoryUse(namespace="a", pod="b", gpu="c", used=1, limit=2)], lambda: {"c": 1})
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    assert len(names) >= 12
    assert {name for name in names if f"`{name}`" not in GUIDE.read_text(encoding="utf-8")} == set()


def test_the_user_guide_has_every_metric_reason_and_option_of_provisioning() -> None:
    text, registry = GUIDE.read_text(encoding="utf-8"), CollectorRegistry()
    ProvisioningMetrics(registry)
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    reasons = {reason for reason, _ in BLOCKING.values()}
    milestones = {each.value for each in Milestone}
    assert {name for name in (*names, *reasons, *milestones, STARTUP_TAINT) if name not in text} == set()


def test_the_user_guide_has_every_condition_of_the_node() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert {name for name in {*TYPES, ADVERTISED} if f"| `{name}` |" not in text} == set()

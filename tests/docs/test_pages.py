"""The pages name links, options, metrics and conditions that exist."""

import re
from pathlib import Path

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.satellites import whole_registry

from tessera.agent.base.runtime import MemoryUsage, Metrics
from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SlicesCollector
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.nodes import node_marks
from tessera.api.nodes.node_marks import AGENT_CONDITIONS
from tessera.cli.agent import command
from tessera.cli.main import tessera
from tessera.driver import node_facts
from tessera.driver.next_kernels import CoverageMetrics
from tessera.driver.rollout.rollout import RolloutMetrics
from tessera.gpu_operator import driver_policy, policy_status
from tessera.observe.record_player import DECIDERS
from tessera.provisioning.milestones import Milestone
from tessera.provisioning.recording import ProvisioningMetrics
from tessera.provisioning.startup_deadline import BLOCKING, STARTUP_TAINT
from tessera.webhook.base import WebhookMetrics

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Options that are about the process and not about what it does, or that only simulated cards have.
UNTOLD = {"--help", "--kubeconfig", "--context", "--log-level", "--node-name", "--simulate", "--simulated-state"}
UNTOLD |= {each.opts[0] for each in command.params if isinstance(each, click.Option) and each.hidden}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


def test_webhooks_that_pages_quote_are_those_of_the_manifests() -> None:
    manifest = (ROOT / "deploy" / "admission.yaml").read_text(encoding="utf-8")
    names = set(re.findall(r"- name: (\S+\.tessera\.dev)$", manifest, re.MULTILINE))
    quoted = {name for page in PAGES for name in re.findall(r'webhook "([^"]+)"', page.read_text(encoding="utf-8"))}
    assert quoted
    assert quoted <= names


def _text(*names: str) -> str:
    return "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in names)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_list_of_decisions_has_every_page_once() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[([\w-]+)\]\(\1\.md\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in folder.glob("*.md") if path.stem != "README")


def test_a_page_has_every_option_of_the_agent() -> None:
    options = {each.opts[0] for each in command.params} - UNTOLD
    assert {option for option in options if f"`{option}`" not in _text("agent-options")} == set()


def test_a_page_has_every_decider_that_can_be_replayed() -> None:
    assert {name for name in DECIDERS if f"- `{name}` (" not in _text("debug-records")} == set()


class _Cards:
    """Cards with values for all gauges."""

    def reactions(self) -> dict[str, int]:
        return {"GPU-1": 0}

    def memory_usage(self) -> list[MemoryUsage]:
        return [MemoryUsage(namespace="a", pod="b", gpu="c", used=1, limit=2)]

    def unattributed_bytes(self) -> dict[str, int]:
        return {"c": 1}


def test_a_page_has_every_metric_of_the_agent() -> None:
    metrics = Metrics()
    metrics.registry.register(SlicesCollector(SliceStateMachine(SliceJournal()).table))
    metrics.show_health(_Cards().reactions)
    metrics.show_memory(_Cards().memory_usage, _Cards().unattributed_bytes)
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    assert len(names) >= 12
    assert {name for name in names if f"`{name}`" not in _text("own-metrics")} == set()


def test_a_page_has_every_metric_reason_and_option_of_provisioning() -> None:
    text, registry = _text("own-metrics", "time-to-gpu", "startup-taints"), CollectorRegistry()
    ProvisioningMetrics(registry)
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    reasons = {reason for reason, _ in BLOCKING.values()}
    milestones = {each.value for each in Milestone}
    assert {name for name in (*names, *reasons, *milestones, STARTUP_TAINT) if name not in text} == set()


def test_a_page_has_every_condition_of_the_node() -> None:
    text = _text("conditions")
    assert {name for name in AGENT_CONDITIONS if f"| `{name}` |" not in text} == set()


def test_a_page_has_every_metric_label_and_annotation_of_drivers() -> None:
    text, registry = _text("own-metrics", "labels", "conditions", "driver-reference"), CollectorRegistry()
    RolloutMetrics(registry)
    CoverageMetrics(registry)
    names = set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.MULTILINE))
    names |= {
        value
        for module in (driver_policy, node_marks, node_facts)
        for name, value in vars(module).items()
        if _is_key(name) and isinstance(value, str)
    }
    names |= {getattr(policy_status, name) for name in ("WITHOUT_EFFECT", "WITHOUT_DRIVER")}
    names |= {each.value for kind in (node_facts.UpgradeState, node_marks.DriverPhase) for each in kind if each.value}
    assert len(names) > 30
    unsaid = {name for name in names if f"`{name}" not in text} - {
        node_facts.ENABLED_ANNOTATION,
        node_facts.INITIAL_ANNOTATION,
    }
    assert unsaid == set()


def _is_key(name: str) -> bool:
    return name.endswith(("_ANNOTATION", "_LABEL", "_CONDITION"))


def test_a_page_has_every_metric_of_the_webhook() -> None:
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(WebhookMetrics().registry).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    assert names
    assert {name for name in names if f"`{name}`" not in _text("own-metrics")} == set()


def test_a_page_has_every_metric_of_the_controller() -> None:
    shown = set(re.findall(r"^# TYPE (\w+)", generate_latest(whole_registry()).decode(), re.MULTILINE))
    names = {name for name in shown if not name.endswith("_created")}
    assert {name for name in names if f"`{name}`" not in _text("own-metrics")} == set()


def test_the_page_on_drivers_has_every_strategy() -> None:
    text = (ROOT / "docs" / "drivers.md").read_text(encoding="utf-8")
    assert {each.value for each in node_marks.DriverStrategy if f"| `{each.value}` |" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    shell = "".join(block for language, block in blocks if language in {"", "console", "sh"})
    for line in shell.replace("\\\n", " ").splitlines():
        found = re.match(r"(?:\$ )?(?:export \w+=\$\()?(?:\.venv/bin/)?tessera( [^|#>;&]*)", line)
        if found:
            _exists(found[1].rstrip(")").split(), line)


def _exists(words: list[str], line: str) -> None:
    at: click.Command = tessera
    while isinstance(at, click.Group) and words and not words[0].startswith("-"):
        known = at.get_command(click.Context(at), words[0])
        assert known is not None, line
        at, words = known, words[1:]
    options = {option for each in at.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "--version"}
    assert {word for word in words if word.startswith("--")} <= options, line

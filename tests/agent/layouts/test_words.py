"""What is said of a layout, what is remembered of it, and who holds a device for sure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.layouts.node import Ledger

from tessera.agent.layouts.facts import Goal, Place, Tenant
from tessera.agent.layouts.journal import Journal, JournalFile, digest_of
from tessera.agent.layouts.status import CardVerdict, LayoutState, LayoutStatus, summed
from tessera.agent.layouts.tenants import Tenants
from tessera.api.names import PodUid
from tessera.kube.meta import ObjectMeta, Uid
from tessera.kube.resources import Pod

GOOD = CardVerdict(LayoutState.SUCCESS, "Applied")
BUSY = CardVerdict(LayoutState.PENDING, "CardsInUse", "GPU 0: pod a/b")
WORKING = CardVerdict(LayoutState.PENDING, "Applying")
BROKEN = CardVerdict(LayoutState.FAILED, "NvmlFailed", "GPU 1: tried 3 times")
REBOOTING = CardVerdict(LayoutState.REBOOTING, "Rebooting", "GPU 2: a reset")


@pytest.mark.parametrize(
    ("verdicts", "state", "reason", "message"),
    [
        ([GOOD, GOOD], "success", "Applied", 'layout "x" is in force'),
        ([], "success", "Applied", 'layout "x" is in force'),
        ([GOOD, WORKING], "pending", "Applying", 'layout "x" is being applied'),
        ([WORKING, BUSY], "pending", "CardsInUse", "GPU 0: pod a/b"),
        ([BUSY, BROKEN, GOOD], "failed", "NvmlFailed", "GPU 1: tried 3 times; GPU 0: pod a/b"),
        ([BROKEN, REBOOTING], "rebooting", "Rebooting", "GPU 2: a reset; GPU 1: tried 3 times"),
    ],
)
def test_the_status_of_the_node_is_that_of_the_card_that_needs_attention_most(
    verdicts: list[CardVerdict], state: str, reason: str, message: str
) -> None:
    found = summed("x", {str(number): each for number, each in enumerate(verdicts)})
    assert found == LayoutStatus(layout="x", state=LayoutState(state), reason=reason, message=message)


def test_success_says_what_the_layout_passes_over() -> None:
    assert summed("x", {"a": GOOD}, ["GPU 1: has no MIG"]).message == 'layout "x" is in force; GPU 1: has no MIG'


def test_a_layout_is_named_by_what_it_wants_in_any_order() -> None:
    one, two = Goal(counts={"1g.5gb": 7}), Goal(counts={"7g.40gb": 1})
    assert digest_of("x", {"a": one, "b": two}) == digest_of("x", {"b": two, "a": one})
    assert len({digest_of("x", {"a": one}), digest_of("y", {"a": one}), digest_of("x", {"a": two})}) == 3


def test_the_journal_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    journal = Journal(layout="x", digest="d", attempts=2, rebooted_from="b", ours={"GPU": (Place("1g.5gb", 3),)})
    JournalFile(tmp_path / "new" / "layouts.json").save(journal, flush=True)
    assert JournalFile(tmp_path / "new" / "layouts.json").load() == journal


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"ours": 3}'])
def test_a_journal_that_cannot_be_read_is_worth_an_empty_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "layouts.json"
    if content is not None:
        path.write_bytes(content)
    assert JournalFile(path).load() == Journal()


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=Uid(f"uid-{name}")))


async def test_a_pod_that_no_watch_has_shown_yet_counts_when_the_api_server_knows_it() -> None:
    kubelet = Ledger()
    kubelet.held = {"new": ("GPU-1::2",), "over": ("GPU-1::3",)}

    async def bound() -> list[Pod]:
        return [pod("new")]

    tenants = Tenants(kubelet, live=lambda: [pod("old")], bound=bound)
    assert await tenants.now() == {"GPU-1": (Tenant("default", "new", PodUid("uid-new")),)}
    assert tenants.pods() == {"uid-old"}

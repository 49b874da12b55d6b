"""What is said of a layout, what is remembered of it, and who holds a device for sure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.mig_config.node import Ledger

from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.mig_config.device_users import DeviceUserLookup
from tessera.agent.mig_config.events import DeviceUser, InstancePlace
from tessera.agent.mig_config.journal import LayoutJournal, LayoutRecord, digest_of
from tessera.agent.mig_config.status import CardStatus, LayoutState, LayoutStatus, summarize_cards
from tessera.api.mig_layouts.layouts_file import LayoutEntry
from tessera.api.names import PodUid
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid

GOOD = CardStatus(LayoutState.SUCCESS, "LayoutApplied")
BUSY = CardStatus(LayoutState.PENDING, "CardsInUse", "GPU 0: pod a/b")
WORKING = CardStatus(LayoutState.PENDING, "LayoutApplying")
BROKEN = CardStatus(LayoutState.FAILED, "NvmlFailed", "GPU 1: tried 3 times")
REBOOTING = CardStatus(LayoutState.REBOOTING, "Rebooting", "GPU 2: a reset")


@pytest.mark.parametrize(
    ("verdicts", "state", "reason", "message"),
    [
        ([GOOD, GOOD], "success", "LayoutApplied", 'layout "x" is in force'),
        ([], "success", "LayoutApplied", 'layout "x" is in force'),
        ([GOOD, WORKING], "pending", "LayoutApplying", 'layout "x" is being applied'),
        ([WORKING, BUSY], "pending", "CardsInUse", "GPU 0: pod a/b"),
        ([BUSY, BROKEN, GOOD], "failed", "NvmlFailed", "GPU 1: tried 3 times; GPU 0: pod a/b"),
        ([BROKEN, REBOOTING], "rebooting", "Rebooting", "GPU 2: a reset; GPU 1: tried 3 times"),
    ],
)
def test_the_status_of_the_node_is_that_of_the_card_that_needs_attention_most(
    verdicts: list[CardStatus], state: str, reason: str, message: str
) -> None:
    found = summarize_cards("x", {str(number): each for number, each in enumerate(verdicts)})
    assert found == LayoutStatus(layout="x", state=LayoutState(state), reason=reason, message=message)


def test_success_says_what_the_layout_passes_over() -> None:
    assert (
        summarize_cards("x", {"a": GOOD}, ["GPU 1: has no MIG"]).message == 'layout "x" is in force; GPU 1: has no MIG'
    )


def test_a_layout_is_named_by_its_name_and_entries_whatever_the_reason() -> None:
    entries = (LayoutEntry(devices=None, mig_enabled=True, counts={"1g.5gb": 7}),)
    wish = DesiredLayout(name="x", entries=entries, reason="the label")
    others = [DesiredLayout(name="y", entries=entries), DesiredLayout(name="x"), DesiredLayout(name="x", entries=())]
    assert digest_of(wish) == digest_of(DesiredLayout(name="x", entries=entries, reason="the cluster's default"))
    assert digest_of(wish) not in set(map(digest_of, others))


def test_the_journal_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    journal = LayoutRecord(
        layout="x", digest="d", attempts=2, rebooted_from="b", managed={"GPU": (InstancePlace("1g.5gb", 3),)}
    )
    LayoutJournal(tmp_path / "new" / "layouts.json").save(journal, flush=True)
    assert LayoutJournal(tmp_path / "new" / "layouts.json").load() == journal


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"ours": 3}'])
def test_a_journal_that_cannot_be_read_is_worth_an_empty_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "layouts.json"
    if content is not None:
        path.write_bytes(content)
    assert LayoutJournal(path).load() == LayoutRecord()


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=Uid(f"uid-{name}")))


async def test_a_pod_that_no_watch_has_shown_yet_counts_when_the_api_server_knows_it() -> None:
    kubelet = Ledger()
    kubelet.held = {"new": ("GPU-1::2",), "over": ("GPU-1::3",)}

    async def bound() -> list[Pod]:
        return [pod("new")]

    tenants = DeviceUserLookup(kubelet, live=lambda: [pod("old")], bound=bound)
    assert await tenants.now() == {"GPU-1": (DeviceUser("default", "new", PodUid("uid-new")),)}


async def test_what_was_given_a_moment_ago_counts_as_held_until_kubelet_lists_the_container() -> None:
    kubelet, lately = Ledger(), {"GPU-1", "GPU-2"}
    kubelet.held = {"new": ("GPU-1",)}

    async def bound() -> list[Pod]:
        return [pod("new")]

    tenants = DeviceUserLookup(kubelet, live=list, bound=bound, lately_given=lambda: frozenset(lately))
    before = tenants.known()
    assert await tenants.now() == {
        "GPU-1": (DeviceUser("default", "new", PodUid("uid-new")),),
        "GPU-2": (DeviceUser(),),
    }
    lately.clear()
    assert tenants.known() != before
    assert (await tenants.now()).keys() == {"GPU-1"}

"""What a person who opens the page wants to know, in a real browser, at three widths and in both themes.

Each story leaves a page that keeps nobody out.
"""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect
from tests.dashboard.browser.conftest import SHEET, THOROUGH, LivePage, Visitor, Visits
from tests.dashboard.browser.scene import NOW, scene, withheld

from tessera.access.agent_pages import FleetUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import Document, KueueDocument, UnshownDocument, WorkloadDocument


@pytest.fixture(autouse=True)
def documents(live: LivePage) -> None:
    live.publish(scene())


def has_room(visitor: Visitor) -> Locator:
    visitor.region("Free room").get_by_role("button", name="0 7g.40gb 1 waiting").click()
    expect(visitor.region("Free room").get_by_role("status")).to_have_text(
        "No card has room for 7g.40gb now; 1 card on gpu-1 can give it once others end."
        " 1 pod waits for it; starts in 4 m to 10 m."
    )
    visitor.region("Free room").get_by_role("button", name="1 3g.20gb", exact=True).click()
    answer = visitor.region("Free room").get_by_role("status")
    expect(answer).to_have_text("1 card has room for 3g.20gb: gpu-4, card 0")
    expect(visitor.region("Cards").get_by_role("heading", name="gpu-4")).to_be_visible()
    expect(visitor.region("Cards").get_by_role("heading", name="gpu-1")).to_have_count(0)
    expect(visitor.region("Free room").get_by_role("button", name="5 shares of 3g.20gb")).to_be_visible()
    return visitor.region("Free room")


def waits(visitor: Visitor) -> Locator:
    queue = visitor.region("Waiting")
    expect(queue.get_by_text("from how long such pods ran and waited before")).to_be_visible()
    expect(queue.get_by_text("not enough free memory slots for 7g.40gb: 3 free, 8 needed")).to_be_visible()
    queue.get_by_role("listitem").filter(has_text="team/big").get_by_role("button", name="why").click()
    expect(queue.get_by_text("a smaller slice has room now")).to_be_visible()
    return queue


def is_idle(visitor: Visitor) -> Locator:
    held = visitor.region("Held, not used")
    expect(held.get_by_role("listitem").first).to_contain_text("team/old-notebook")
    row = held.get_by_role("listitem").filter(has_text="team/forgotten")
    expect(row).to_contain_text("2.0 GPU-hours unused")
    expect(held.get_by_role("listitem").filter(has_text="research/trainer-0")).to_contain_text("card failed")
    likely = held.get_by_role("listitem").filter(has_text="team/student-3")
    expect(likely).to_contain_text("at most 0.0% busy so far; counts as not used from 30 min on")
    expect(visitor.page.get_by_role("definition").nth(7)).to_have_text("4 +1 so far")
    row.get_by_role("button", name="gpu-2, card 0").click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet.get_by_role("heading", name="gpu-2, card 0")).to_be_focused()
    expect(sheet.get_by_text("no process in the 120 min")).to_be_visible()
    return held


def is_broken(visitor: Visitor) -> Locator:
    broken = visitor.region("Broken")
    for text in ("gpu-2, card 1", "needs a reset", "XID 48", "research/trainer-0", "once nobody holds it"):
        expect(broken.get_by_text(text).first).to_be_visible()
    expect(broken.get_by_text("no pod of DaemonSet tessera-system/tessera-agent is on it")).to_be_visible()
    expect(broken.get_by_text("it offers 1 x nvidia.com/gpu")).to_be_visible()
    expect(broken.get_by_text("no image for kernel 5.14.0-284 in the registry")).to_be_visible()
    return broken


def team_uses(visitor: Visitor) -> Locator:
    use = visitor.region("Use by namespace")
    row = use.get_by_role("row").filter(has_text="research")
    expect(row).to_contain_text("1.0")
    expect(use.get_by_role("row").nth(1)).to_contain_text("team")
    row.get_by_role("button", name="research is mine").click()
    expect(use.get_by_role("row").nth(1)).to_contain_text("research")
    own = visitor.region("Your pods")
    expect(own).to_contain_text("research/trainer-0")
    expect(own).to_contain_text("its card needs a reset: XID 48")
    row.get_by_role("button", name="research", exact=True).click()
    expect(visitor.region("Sums of what is shown").get_by_role("definition").nth(1)).to_have_text("1.0 100 %")
    use.get_by_role("button", name="workload").click()
    expect(visitor.region("Use by workload").get_by_role("row")).to_have_count(2)
    return visitor.region("Use by workload")


def services(visitor: Visitor) -> Locator:
    table = visitor.region("Services")
    rows = table.get_by_role("row")
    slow = rows.filter(has_text="team/trainer")
    evidence = slow.get_by_text("its card is slowed down by heat or power supply")
    expect(evidence).to_be_hidden()
    slow.get_by_text("throttled, 1 pod").click()
    expect(evidence).to_contain_text("throttled for 25m")
    expect(evidence).to_contain_text("Ask the administrator")
    expect(slow.get_by_role("button", name="team/trainer-7")).to_be_visible()
    cells = {
        "team/api": ["2 of 2", "41.5", "2", "3", "—", "30 %", "180 W", "4,337 J"],
        "team/llm": ["0 of 1, 1 waiting", "n/a", "n/a", "64+", "in 4 m", "n/a", "n/a", "n/a"],
        "research/chat": ["0 of 2", "n/a", "n/a", "0", "—", "n/a", "n/a", "n/a"],
    }
    for name, expected in cells.items():
        expect(rows.filter(has_text=name).get_by_role("cell")).to_have_text(expected)
    expect(rows.filter(has_text="research/chat")).to_contain_text("no agent reports 2 pods")
    update = rows.filter(has_text="team/api").locator("details")
    update.locator("summary").click()
    for text in ("update: images are being pulled, for 95 s", "once its images are on that pod's node", "team/api-9"):
        expect(update).to_contain_text(text)
    for name in ("team/api-1", "gpu-4"):
        expect(update.get_by_role("button", name=name)).to_be_visible()
    deadlock = rows.filter(has_text="research/chat").locator("details")
    deadlock.locator("summary").press("Enter")
    expect(deadlock).to_contain_text("neither goes on by itself")
    expect(deadlock.get_by_role("listitem")).to_have_count(3)
    table.get_by_label("first").select_option("most requests")
    expect(rows.nth(1)).to_contain_text("team/api")
    return table


#: The questions that a stranger answers within a minute each.
STORIES = {
    "room": has_room,
    "waiting": waits,
    "idle": is_idle,
    "broken": is_broken,
    "team": team_uses,
    "services": services,
}


@pytest.mark.parametrize("story", STORIES)
def test_a_stranger_finds(story: str, visit: Visits) -> None:
    visitor = visit()
    answer = STORIES[story](visitor)
    visitor.check_widths(f"live-page-{story}", answer)


def test_each_kind_of_card_is_drawn_as_it_is(visit: Visits) -> None:
    visitor = visit("#form=rows")
    cards = visitor.region("Cards")
    expect(cards.get_by_role("button", name=re.compile("^card "))).to_have_count(10)
    kinds = ("slices on demand", "whole", "not offered", "fixed MIG", "4 time slices", "5 MPS shares")
    for kind in (*kinds, "fixed MIG, 4 time slices each"):
        expect(cards.get_by_text(kind, exact=True).first).to_be_visible()
    for title, count in {
        "3g.20gb: team/vllm, busy, busy 60 %": 1,
        "1g.5gb: team/new-pod, being made": 1,
        "free memory slot": 7,
        "3g.20gb: free": 1,
        "not part of the layout": 1,
        "3g.20gb: free shares": 2,
        "free share": 5,
        "team/demo, resident, busy 35 %": 1,
        "not offered": 1,
        "research/trainer-0, card failed, busy n/a": 1,
    }.items():
        expect(cards.get_by_title(title, exact=True)).to_have_count(count)
    visitor.picture_of(cards, "live-page-cards")


def test_a_cordoned_card_is_not_broken_and_a_free_one_may_be_for_nobody(live: LivePage, visit: Visits) -> None:
    usage, node = withheld()
    live.publish(make_documents(FleetUsage(nodes=(usage,)), (), (), nodes=[node]))
    visitor = visit("#form=rows")
    by_hand = visitor.region("Cordoned by hand")
    for text in ("gpu-7, card 0", "cordoned by hand: fan is loud", "team/web-1", "the pods on it keep running"):
        expect(by_hand.get_by_text(text).first).to_be_visible()
    expect(by_hand.get_by_text("asks for")).to_have_count(0)
    broken = visitor.region("Broken")
    expect(broken.get_by_role("listitem").filter(has_text="gpu-7, card 1")).to_contain_text("NVLink errors")
    expect(broken.get_by_text("gpu-7, card 0")).to_have_count(0)
    expect(visitor.region("Cards").get_by_text("cordoned by hand: fan is loud")).to_have_class("cordoned")
    expect(visitor.region("Cards").get_by_text("withheld: NVLink errors")).to_have_class("warn")
    room = visitor.region("Free room")
    expect(room.get_by_role("button", name="1 whole card")).to_be_visible()
    expect(room.get_by_text("Not counted: 1 free device that kube-scheduler leaves empty")).to_be_visible()
    visitor.page.get_by_label("State").select_option("cordoned")
    expect(visitor.region("Cards").get_by_role("button", name=re.compile("^card "))).to_have_count(1)
    visitor.page.get_by_label("State").select_option("")
    visitor.check_widths("live-page-cordoned", by_hand)


def test_the_picture_of_the_fleet_is_first(visit: Visits) -> None:
    visitor = visit()
    failed = visitor.region("Cards").get_by_title("research/trainer-0, card failed, busy n/a")
    expect(failed).to_be_in_viewport()
    for name in (
        "card 0, A100-SXM4-40GB, 1 being made, 1 busy",
        "card 1, H100 80GB HBM3, 1 held, needs a reset: XID 48",
        "card 1, A100-SXM4-40GB, 2 busy, 1 not known yet, 2 free",
    ):
        expect(visitor.region("Cards").get_by_role("button", name=name)).to_be_visible()
    parts = [
        visitor.region("Cards").get_by_title(title).first
        for title in ("research/trainer-0, card failed", "3g.20gb: team/batch-3", "team/vllm", "team/forgotten")
    ]
    for theme in THOROUGH:
        visitor.page.emulate_media(color_scheme=theme)
        colours = {part.evaluate("element => getComputedStyle(element).backgroundColor") for part in parts}
        assert len(colours) == len(parts), "lost, unknown, busy and unused differ"
    visitor.check_widths("live-page", everywhere=True)
    visitor.picture("live-page-mosaic")


def test_pods_with_state_load_and_memory(visit: Visits) -> None:
    visitor = visit()
    pods = visitor.region("Pods with cards")
    expect(pods.get_by_role("row").nth(1)).to_contain_text("team/trainer-7")
    row = pods.get_by_role("row").filter(has_text="team/notebook")
    for text in ("busy", "30 %", "3.4 of 4.0 GiB", "gpu-1, card 1", "15 m"):
        expect(row).to_contain_text(text)
    slowed = pods.get_by_role("row").filter(has_text="team/trainer-7").get_by_text("throttled for 25m", exact=True)
    expect(slowed).to_have_attribute("title", re.compile("slowed down by heat .* Ask the administrator"))
    pods.get_by_label("first").select_option("most wasted")
    expect(pods.get_by_role("row").nth(1)).to_contain_text("team/old-notebook")
    pods.get_by_label("first").select_option("with findings")
    expect(pods.get_by_role("row").nth(1)).to_contain_text("its card needs a reset")
    visitor.picture_of(pods, "live-page-pods")


@pytest.mark.parametrize("words", ["", "ns:team"])
def test_a_phone_answers_where_a_pod_is_and_why_it_waits_on_its_first_screen(words: str, visit: Visits) -> None:
    visitor, region = visit(f"#q={words}", width=390), "Pods that match" if words else "Waiting"
    first = visitor.region(region).get_by_role("listitem").first
    expect(first.get_by_text("team/big")).to_be_in_viewport(ratio=1)
    expect(first.get_by_text("number 1 of 2")).to_be_in_viewport(ratio=1)
    expect(first.get_by_text("not enough free memory slots for 7g.40gb")).to_be_in_viewport(ratio=1)
    visitor.check(f'[aria-label="{region}"]')


def test_a_pod_leads_to_its_reason_its_queue_its_events_and_its_card_and_that_to_its_node(visit: Visits) -> None:
    visitor = visit()
    visitor.region("Waiting").get_by_role("button", name="team/sweep-9").click()
    sheet = visitor.page.get_by_role("complementary", name="Pod")
    expect(sheet.get_by_role("heading", name="team/sweep-9")).to_be_focused()
    expect(sheet.get_by_text("number 2 of 2")).to_be_visible()
    expect(sheet.get_by_text("not enough free memory slots for 4g.20gb: 3 free, 4 needed").first).to_be_visible()
    expect(sheet.get_by_text("No event of the last hour.")).to_be_visible()
    sheet.get_by_role("button", name="team/big").click()
    expect(sheet.get_by_role("heading", name="team/big")).to_be_focused()
    expect(sheet.get_by_role("region", name="Events")).to_contain_text("SliceWaiting 2 m ago, 3 times")
    visitor.check_widths("live-page-pod", sheet)
    visitor.page.keyboard.press("Escape")
    visitor.region("Pods with cards").get_by_role("button", name="team/vllm").click()
    sheet.get_by_role("button", name="gpu-1, card 0").click()
    card = visitor.page.get_by_role("complementary", name="Card")
    card.get_by_role("button", name="gpu-1", exact=True).click()
    node = visitor.page.get_by_role("complementary", name="Node")
    expect(node.get_by_text("card 1 Tesla T4: 1 busy, 1 resident")).to_be_visible()
    node.get_by_role("button", name="show only its cards and pods").click()
    expect(visitor.page.get_by_label("Filter")).to_have_value("node:gpu-1")
    expect(visitor.region("Cards").get_by_text("2 of 10 shown")).to_be_visible()
    expect(visitor.page.get_by_role("complementary")).to_have_count(0)


def test_a_silent_node_says_why_and_what_to_do(visit: Visits) -> None:
    visitor = visit()
    visitor.region("Broken").get_by_role("button", name="gpu-3").click()
    node = visitor.page.get_by_role("complementary", name="Node")
    expect(node.get_by_role("heading", name="gpu-3")).to_be_focused()
    expect(
        node.get_by_text("silent for 12 m: no pod of DaemonSet tessera-system/tessera-agent is on it")
    ).to_be_visible()
    expect(node.get_by_text("has no running agent: its cards stay as they are until it runs")).to_be_visible()
    expect(node.get_by_text("kubectl describe node gpu-3")).to_be_visible()
    visitor.check_widths("live-page-node", node)


def test_a_card_says_how_its_pod_uses_it_badly(visit: Visits) -> None:
    visitor = visit()
    visitor.region("Cards").get_by_role("button", name=re.compile("^card 2, H100")).click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet.get_by_text("Slowed down: hw thermal.")).to_be_visible()
    expect(sheet.get_by_text("throttled for 25m: its card is slowed down by heat")).to_be_visible()
    visitor.check(SHEET)
    visitor.picture_of(sheet, "live-page-slow-card")


def test_a_value_that_is_not_measured_says_why(visit: Visits) -> None:
    visitor = visit()
    visitor.region("Cards").get_by_role("button", name=re.compile("^card 0, A100.* 1 idle")).click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet.get_by_text("the driver does not report it in MIG mode")).to_be_visible()


def test_the_last_hours_of_the_fleet_and_of_a_card(visit: Visits) -> None:
    visitor = visit()
    past = visitor.region("The last hours")
    expect(past.get_by_role("img", name=re.compile(r"busy: 26 % at \d\d:\d\d, 20 % to 58 %"))).to_be_visible()
    visitor.region("Cards").get_by_role("button", name=re.compile("^card 0, H100")).click()
    expect(visitor.page.get_by_role("img", name=re.compile(r"memory: 3 % at \d\d:\d\d"))).to_be_visible()
    visitor.check(SHEET)
    visitor.picture("live-page-card", whole=False)


def test_a_node_on_its_way_and_drivers(visit: Visits) -> None:
    section = visit().region("Drivers and nodes on their way")
    expect(section.get_by_text("pulling its driver's image")).to_be_visible()
    expect(section.get_by_title("ready 20 s")).to_be_visible()
    expect(section.get_by_text("1 570: precompiled, ready")).to_be_visible()


def held(count: int, unshown: int, **kueue: Any) -> dict[str, Document]:
    """What waits in Kueue: Jobs in a long queue, and so many namespaces with more."""
    quota = "waits in Kueue for quota; it needs 20Gi more of GPU memory than the queue has free in flavor gpu-memory"
    found: dict[str, Document] = {
        f"workload/team/job-train-{number}": WorkloadDocument(
            namespace="team",
            workload=f"job-train-{number}",
            owner=f"Job/train-{number}",
            queue="slices",
            since=NOW - 600 + 60 * number,
            position=number + 1,
            of=1_000,
            of_more=True,
            among_all=2 * number + 1,
            case="kueue-quota",
            verdict=quota,
        )
        for number in range(count)
    }
    for number in range(unshown):
        name = f"team-{number}"
        found[f"unshown/{name}"] = UnshownDocument(namespace=name, workloads=9_800)
    return {**scene(), **found, "kueue": KueueDocument(**kueue)}


def test_what_waits_in_kueue_and_what_is_not_shown_of_it(visit: Visits, live: LivePage) -> None:
    note = "places in queues are not known: the page's account may not list localqueues.kueue.x-k8s.io"
    live.publish(held(6, 50, notes=("Kueue has more Workloads than this page reads at once", note)))
    visitor = visit()
    queue = visitor.region("Waiting in Kueue")
    expect(queue.get_by_role("listitem").first).to_contain_text("number 1 of at least 1,000 in the queue slices")
    expect(queue.get_by_text("Kueue has more Workloads than this page reads at once.")).to_be_visible()
    expect(queue.get_by_text("Places in queues are not known: the page's account may not list")).to_be_visible()
    expect(
        queue.get_by_text("490,000 more Workloads in 50 namespaces wait; see: tessera queue -n NAMESPACE")
    ).to_be_visible()
    visitor.check_widths("live-page-kueue", queue)


def test_an_empty_list_of_kueue_does_not_say_that_nothing_waits_unless_that_is_known(
    visit: Visits, live: LivePage
) -> None:
    live.publish(held(0, 0))
    queue = visit().region("Waiting in Kueue")
    expect(queue.get_by_text("Kueue holds no Workload that you may list, as far as this page knows.")).to_be_visible()
    live.publish(held(0, 1))
    expect(
        queue.get_by_text("9,800 more Workloads in namespace team-0 wait; see: tessera queue -n team-0")
    ).to_be_visible()
    expect(queue.get_by_text("No Workload that you may list is shown here.")).to_be_visible()
    live.publish(held(1, 0, notes=("Kueue's queues cannot be read now",), detail="a proxy says no", read=NOW - 180))
    expect(queue.get_by_text("Kueue's queues cannot be read now: a proxy says no")).to_be_visible()
    expect(queue.get_by_text("This is what waited 3 m ago.")).to_be_visible()
    live.publish(held(0, 0, notes=("Kueue's queues cannot be read now",)))
    expect(queue.get_by_text("No Workload that you may list is shown here.")).to_be_visible()

"""How the page behaves: changes, filters, addresses, keys, lost connections, hostile names."""

import re
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Route, expect
from tests.dashboard.browser.conftest import LivePage, Visits
from tests.dashboard.browser.scene import A100, H100, NOW, card, device, scene
from tests.observe.conftest import lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import KIND_MISSING
from tessera.api.nodes.usage import NodeUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument, FailureDocument, SummaryDocument, TeamDocument, WaitingDocument
from tessera.forecast.queue_page import SpareSlices

HOSTILE = "<img src=x onerror=alert(1)>\u202e" + "x" * 200


@pytest.fixture(autouse=True)
def documents(live: LivePage) -> None:
    live.publish(scene())


def test_tiles_come_and_go(visit: Visits, live: LivePage) -> None:
    visitor = visit()
    tile = visitor.region("Cards").get_by_title("1g.5gb: free")
    expect(tile).to_have_count(0)
    live.publish(scene(device("MIG-2", "1g.5gb", 2, 1)))
    expect(tile).to_be_visible()
    live.publish(scene())
    expect(tile).to_have_count(0)


def test_the_room_says_which_part_of_it_is_not_for_every_pod(visit: Visits, live: LivePage) -> None:
    """The page once counted free cards, and listed pods that wait for them, without a word why."""
    visitor = visit()
    room = visitor.region("Free room")
    expect(room.get_by_text("Not counted")).to_have_count(0)
    documents = scene()
    for key, each in documents.items():
        if isinstance(each, CardDocument) and each.node == "gpu-4":
            documents[key] = msgspec.structs.replace(each, closed=True, free=dict.fromkeys(each.free, 0))
    documents |= {
        f"waiting/team/{case}-{n}": WaitingDocument(
            namespace="team", pod=f"{case}-{n}", requests="1 x gpu.shared", since=NOW, case=case
        )
        for case, number in (("reserved", 2), ("placing", 1))
        for n in range(number)
    }
    for name, asks in (("free", "1 x gpu.shared"), ("none", "1 x mig-7g.40gb")):
        full = WaitingDocument(namespace="team", pod=name, requests=asks, since=NOW, case="full")
        documents[f"waiting/team/{name}"] = full
    documents["summary"] = msgspec.structs.replace(documents["summary"], starting=3)
    live.publish(documents)
    expect(room.get_by_text("Not counted")).to_have_text(
        "Not counted: 3 cards on nodes that take no new pods (cordoned, or not ready)."
        " Reserved for pods that go first: what 2 waiting pods would use."
        " 1 waiting pod will get a part of it now."
        " 3 pods will take a part of it: they have their place, and start now."
        ' 1 waiting pod found none of it: it became free just now, or their nodes are others (choose "why").'
    )
    room.get_by_role("button", name="2 shares reserved").click()
    expect(room.get_by_role("status")).to_contain_text("room for share, reserved for pods that go first: gpu-")
    room.get_by_role("status").get_by_role("button").first.click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet).to_contain_text("share, reserved for pods that go first")
    sheet.get_by_role("button", name="close").click()
    room.get_by_role("button", name="2 shares reserved").click()
    visitor.page.get_by_role("button", name="gpu-4, card 0").first.click()
    expect(sheet.get_by_text("Its node takes no new pods: it is cordoned, or not ready.")).to_be_visible()


def test_who_idles_is_told_before_it_is_proven_and_what_cannot_be_measured(visit: Visits, live: LivePage) -> None:
    part = msgspec.structs.replace(device("MIG-b", "3g.20gb", 0, 4), values={}, processes=1)
    dark = card(
        "GPU-b", 0, A100, mig=True, slots=8, kind="mig", devices=(part,), absent={"gpu_utilization": "mig_mode"}
    )
    seen = card("GPU-w", 1, H100, kind="whole")
    leases = (
        lease("notebook", "MIG-b", kind="mig", share=0.5, state="unknown", busy=None, held=900.0),
        lease(
            "forgotten",
            "GPU-w",
            state="unknown",
            busy=0.0,
            held=480.0,
            evidence="held for 8 min, at most 0.0% busy so far",
            counts_from=1800.0,
        ),
    )
    usage = NodeUsage(node="gpu-8", cards=(dark, seen), leases=leases, simulated=True)
    live.publish(make_documents(FleetUsage(nodes=(usage,)), (), ()))
    visitor = visit()
    held = visitor.region("Held, not used")
    expect(held).to_contain_text("No pod is known to hold something without use.")
    expect(held.get_by_role("listitem")).to_contain_text(
        "held for 8 min, at most 0.0% busy so far; counts as not used from 30 min on"
    )
    held.get_by_role("button", name="1 pod on 1 card that cannot be measured").click()
    expect(visitor.page.get_by_label("State")).to_have_value("blind")
    expect(visitor.region("Pods with cards").get_by_role("row")).to_have_count(2)
    expect(visitor.page.get_by_text("waiting, broken and not used count all states and rooms.")).to_be_visible()


def test_what_looks_unused_is_not_denied_by_a_filter_and_each_card_that_cannot_be_measured_counts(
    visit: Visits, live: LivePage
) -> None:
    dark = [
        card(f"GPU-{n}", n, A100, kind="whole", values={}, processes=1, absent={"gpu_utilization": "not_supported"})
        for n in range(2)
    ]
    seen = card("GPU-w", 2, H100, kind="whole")
    unknown = {"state": "unknown", "held": 480.0}
    leases = (
        *(lease("pair", f"GPU-{n}", busy=None, **unknown) for n in range(2)),
        lease("young", "GPU-w", busy=0.0, counts_from=1800.0, **unknown),
    )
    usage = NodeUsage(node="gpu-8", cards=(*dark, seen), leases=leases, simulated=True)
    live.publish(make_documents(FleetUsage(nodes=(usage,)), (), ()))
    visitor = visit("#q=ns:team")
    held = visitor.region("Held, not used")
    expect(held.get_by_role("listitem")).to_contain_text("team/young")
    expect(held.get_by_role("button", name="1 pod on 2 cards that cannot be measured")).to_be_visible()
    expect(held).to_contain_text("No pod is known to hold something without use.")
    expect(held).not_to_contain_text("has the words of the filter")
    unused = (
        visitor.region("Use by namespace").get_by_role("row").filter(has_text="team").locator('[data-name="unused"]')
    )
    expect(unused).to_have_text("0.0 GPU-h")
    found = visit("#q=state:idle").region("Pods with cards").get_by_role("row")
    expect(found).to_have_count(2)
    expect(found.last).to_contain_text("team/young")


def test_an_agent_of_the_version_before_names_nobody_as_likely_unused(visit: Visits, live: LivePage) -> None:
    seen = card("GPU-w", 0, H100, kind="whole")
    young = lease("young", "GPU-w", state="unknown", busy=0.0, held=480.0)
    usage = NodeUsage(node="gpu-8", cards=(seen,), leases=(young,), simulated=True)
    live.publish(make_documents(FleetUsage(nodes=(usage,)), (), ()))
    held = visit().region("Held, not used")
    expect(held.get_by_role("listitem")).to_have_count(0)
    expect(held).to_contain_text("Not known: 1 pod not measured yet, or whose card or node is silent.")


def test_hours_on_a_failed_card_are_the_same_in_the_list_and_in_the_sums(visit: Visits, live: LivePage) -> None:
    """The agent goes on to count a pod that it can still ask; the hours since the fault count once."""
    documents = scene()
    for key, each in documents.items():
        if isinstance(each, CardDocument) and each.health is not None and each.leases:
            health = msgspec.structs.replace(each.health, state="needs_reset", since=NOW - 7200)
            leases = tuple(
                msgspec.structs.replace(lease, state="idle", wasted=9000.0, held=20_000.0) for lease in each.leases
            )
            documents[key] = msgspec.structs.replace(each, health=health, leases=leases)
    live.publish(documents)
    visitor = visit("#q=trainer-0")
    expect(visitor.region("Held, not used").get_by_role("listitem")).to_contain_text("2.5 GPU-hours unused")
    row = visitor.region("Use by namespace").get_by_role("row").filter(has_text="research")
    expect(row.locator('[data-name="unused"]')).to_have_text("2.5 GPU-h")


def test_each_fault_of_a_card_stands_once(visit: Visits, live: LivePage) -> None:
    parts = (device("MIG-a", "3g.20gb", 0, 4), device("MIG-b", "3g.20gb", 4, 4))
    cut = card("GPU-f", 0, A100, mig=True, slots=8, kind="mig", devices=parts)
    faults = {
        "one": ("MIG-a", "XID 94 on its part"),
        "two": ("MIG-a", "XID 94 on its part"),
        "three": ("MIG-b", "XID 95"),
    }
    leases = tuple(lease(name, part, share=0.25, fault=fault) for name, (part, fault) in faults.items())
    usage = NodeUsage(node="gpu-8", cards=(cut,), leases=leases, simulated=True)
    live.publish(make_documents(FleetUsage(nodes=(usage,)), (), ()))
    pods = visit().region("Pods with cards")
    expect(pods.get_by_text("XID 94 on its part")).to_have_count(1)
    expect(pods.get_by_text("XID 95")).to_have_count(1)


def queued(name: str, position: int, of: int, **more: Any) -> WaitingDocument:
    return WaitingDocument(
        namespace="team", pod=name, requests="1 x mig-7g.40gb", since=NOW, position=position, of=of, **more
    )


def test_a_place_says_how_many_before_it_wait_for_the_same_cards(visit: Visits, live: LivePage) -> None:
    rows = [
        queued("a", 1, 4, p50=NOW + 20),
        queued("b", 2, 4, ahead=1, p50=NOW + 120),
        queued("c", 3, 4, p50=NOW + 180),
        queued("d", 4, 4, ahead=2, p50=NOW + 240),
    ]
    live.publish({"summary": scene(history=False)["summary"]} | {f"waiting/team/{each.pod}": each for each in rows})
    visitor = visit()
    queue = visitor.region("Waiting")
    for name, text in {
        "team/a": "number 1 of 4 for its room starts in 1 m or more",
        "team/b": "number 2 of 4 for its room",
        "team/c": "number 3 of 4 (none of the 2 before it waits for cards that it may use)",
        "team/d": "number 4 of 4 (2 of the 3 before it wait for cards that it may use)",
    }.items():
        expect(queue.get_by_role("listitem").filter(has_text=name)).to_contain_text(text)
    queue.get_by_role("button", name="team/c").click()
    sheet = visitor.page.get_by_role("complementary", name="Pod")
    expect(sheet.get_by_text("Before it in the queue: team/a, team/b")).to_be_visible()


def test_pods_of_two_orders_are_not_named_as_one(visit: Visits, live: LivePage) -> None:
    rows = [queued(f"{order}-{place}", place, 2, ahead=place - 1) for order in "xy" for place in (1, 2)]
    live.publish({"summary": scene(history=False)["summary"]} | {f"waiting/team/{each.pod}": each for each in rows})
    visitor = visit()
    visitor.region("Waiting").get_by_role("button", name="team/x-2").click()
    sheet = visitor.page.get_by_role("complementary", name="Pod")
    expect(sheet.get_by_text("number 2 of 2 for its room")).to_be_visible()
    expect(sheet.get_by_text("Before it in the queue")).to_have_count(0)


def test_a_room_without_a_usable_card_promises_nothing(visit: Visits, live: LivePage) -> None:
    """A closed node gives nothing once others end, and a pod without a place has no start to tell."""
    documents = scene()
    for key, each in documents.items():
        if isinstance(each, CardDocument) and "7g.40gb" in each.free:
            documents[key] = msgspec.structs.replace(each, closed=True, free=dict.fromkeys(each.free, 0))
        if isinstance(each, WaitingDocument):
            documents[key] = msgspec.structs.replace(each, position=0, of=0, p50=None, p90=None, basis="", starts=0)
    both = WaitingDocument(namespace="team", pod="both", requests="2 x mig-7g.40gb, 1 x gpu.shared", since=NOW)
    live.publish(documents | {"waiting/team/both": both})
    room = visit("#room=7g.40gb").region("Free room")
    expect(room.get_by_role("status")).to_have_text("No card that is shown has room for 7g.40gb. 2 pods wait for it.")


def test_a_pod_with_several_cards_says_how_they_are_joined(visit: Visits, live: LivePage) -> None:
    documents, told = scene(), "its 2 cards are joined by 18 NVLinks (NV18)"
    for key, each in documents.items():
        if isinstance(each, CardDocument) and any(lease.pod == "forgotten" for lease in each.leases):
            leases = tuple(msgspec.structs.replace(lease, joined=told) for lease in each.leases)
            documents[key] = msgspec.structs.replace(each, leases=leases)
    live.publish(documents)
    visitor = visit()
    visitor.region("Held, not used").get_by_role("button", name="team/forgotten").click()
    sheet = visitor.page.get_by_role("complementary", name="Pod")
    expect(sheet.get_by_text(f"{told}.", exact=True)).to_be_visible()


def test_a_queue_that_nobody_tells_is_named_where_pods_wait(visit: Visits, live: LivePage) -> None:
    visitor = visit()
    told = visitor.region("Waiting").get_by_text("Places and expected starts are not known")
    expect(told).to_have_count(0)
    documents = scene()
    documents["summary"] = msgspec.structs.replace(
        documents["summary"], unqueued=True, unqueued_detail="no controller runs in tessera-system"
    )
    live.publish(documents)
    expect(told).to_have_text(
        "Places and expected starts are not known, since the controller's queue cannot be read:"
        " no controller runs in tessera-system."
    )


def test_words_and_fields_filter(visit: Visits) -> None:
    visitor = visit()
    for words, shown in {
        "h100 never": 1,
        "node:gpu-4": 3,
        "model:T4 ns:team": 1,
        "pod:demo state:resident": 1,
        "pod:notebook state:resident": 0,
        "state:needs_reset": 1,
        "kind:mps": 1,
        "profile:3g.20gb": 4,
    }.items():
        visitor.page.get_by_label("Filter").fill(words)
        expect(visitor.region("Cards").get_by_text(f"{shown} of 10 shown")).to_be_visible()


def test_the_heading_of_curves_is_the_time_that_their_axis_shows(visit: Visits) -> None:
    """Of 30 samples, one in 300 s, the first is 145 minutes before the last."""
    visitor = visit()
    visitor.page.get_by_role("button", name="gpu-2, card 0").first.click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet.get_by_role("heading", name="The last 2 hours")).to_be_visible()


def test_a_view_can_be_sent_to_somebody(visit: Visits) -> None:
    visitor = visit()
    visitor.page.get_by_label("Filter").fill("team")
    visitor.page.get_by_label("State").select_option("never used")
    visitor.region("Held, not used").get_by_role("button", name="gpu-2, card 0").click()
    other = visit("#" + visitor.page.url.partition("#")[2])
    expect(other.page.get_by_label("Filter")).to_have_value("team")
    expect(other.page.get_by_label("State")).to_have_value("never_used")
    expect(other.region("Cards").get_by_text("1 of 10 shown")).to_be_visible()
    expect(other.page.get_by_role("complementary").get_by_role("heading", name="gpu-2, card 0")).to_be_visible()
    visitor.page.go_back()
    expect(visitor.page.get_by_role("complementary")).to_have_count(0)


def test_the_keyboard_is_enough(visit: Visits) -> None:
    visitor = visit()
    keys = visitor.page.keyboard
    keys.press("?")
    expect(visitor.page.get_by_text("next card, card before")).to_be_visible()
    keys.press("j")
    keys.press("j")
    keys.press("Enter")
    sheet = visitor.page.get_by_role("complementary", name="Card")
    expect(sheet.get_by_role("heading", name="gpu-1, card 1")).to_be_focused()
    keys.press("Escape")
    expect(sheet).to_have_count(0)
    expect(visitor.region("Cards").get_by_role("button", name="card 1, Tesla T4")).to_be_focused()
    keys.press("/")
    keys.type("T4")
    expect(visitor.page.get_by_text("1 of 10 shown")).to_be_visible()
    keys.press("Escape")
    expect(visitor.page.get_by_label("Filter")).to_have_value("")
    keys.press("m")
    expect(visitor.region("Cards").get_by_role("button", name="rows")).to_have_attribute("aria-pressed", "true")
    visitor.check('[aria-label="Cards"]')


@pytest.mark.parametrize("width", [390, *(pytest.param(width, marks=pytest.mark.soak) for width in (768, 1280))])
def test_the_five_questions_are_answered_by_the_keyboard_alone(width: int, visit: Visits) -> None:
    visitor = visit(width=width)
    sheet = visitor.page.get_by_role("complementary")
    visitor.press_on(visitor.region("Free room").get_by_role("button", name="1 3g.20gb", exact=True))
    expect(visitor.region("Free room").get_by_role("status")).to_have_text("1 card has room for 3g.20gb: gpu-4, card 0")
    visitor.page.keyboard.press("Escape")
    link = visitor.region("Waiting").get_by_role("button", name="team/big")
    visitor.press_on(link)
    expect(sheet.get_by_text("a smaller slice has room now")).to_be_visible()
    visitor.page.keyboard.press("Escape")
    expect(link).to_be_focused()
    visitor.press_on(visitor.region("Broken").get_by_role("button", name="gpu-2, card 1"))
    expect(sheet.get_by_text("XID 48, a double-bit ECC error").first).to_be_visible()
    visitor.page.keyboard.press("Escape")
    visitor.press_on(visitor.region("Held, not used").get_by_role("button", name="team/forgotten"))
    expect(sheet.get_by_text("no process in the 120 min")).to_be_visible()
    visitor.page.keyboard.press("Escape")
    visitor.press_on(visitor.region("Use by namespace").get_by_role("button", name="research is mine"), "Space")
    expect(visitor.region("Your pods")).to_contain_text("research/trainer-0")


def test_the_list_of_keys_opens_where_the_visitor_is(visit: Visits) -> None:
    visitor = visit()
    visitor.region("The last hours").scroll_into_view_if_needed()
    visitor.page.get_by_role("button", name="keys").click()
    expect(visitor.page.get_by_text("next card, card before")).to_be_in_viewport()


def test_a_filter_without_matches_can_be_cleared_without_a_keyboard(visit: Visits) -> None:
    visitor = visit()
    visitor.page.get_by_label("Filter").fill("nothing-has-this")
    visitor.region("Cards").get_by_role("button", name="clear the filter").click()
    expect(visitor.page.get_by_label("Filter")).to_have_value("")
    expect(visitor.region("Cards").get_by_text("10 cards")).to_be_visible()


def test_the_sums_are_those_of_what_is_shown(visit: Visits) -> None:
    visitor = visit()
    figures = visitor.page.get_by_role("definition")
    expect(figures.nth(0)).to_have_text("10")
    expect(
        visitor.page.get_by_text(
            "10 cards on 4 nodes; 1 silent; 1.0 of what is allocated is on failed cards; busy is measured on 5."
        )
    ).to_be_visible()
    expect(visitor.region("Cards").get_by_text("10 cards")).to_be_visible()
    visitor.page.get_by_label("Filter").fill("ns:research")
    for number, text in enumerate(("1", "1.0 100 %", "n/a", "n/a", "1", "0", "1", "1")):
        expect(figures.nth(number)).to_have_text(text)
    expect(visitor.page.get_by_text("Of what the filter shows.")).to_be_visible()


def test_teams_are_added_up_and_chosen_where_a_label_names_them(visit: Visits, live: LivePage) -> None:
    live.publish(
        {
            **scene(),
            "team/team": TeamDocument(namespace="team", team="vision"),
            "team/research": TeamDocument(namespace="research", team="vision"),
        }
    )
    visitor = visit()
    sums = visitor.region("Use by team")
    expect(sums.get_by_role("row", name=re.compile("^vision"))).to_contain_text("5.2")
    expect(sums.get_by_role("row")).to_have_count(2)
    sums.get_by_role("button", name="namespace", exact=True).press("Enter")
    by_namespace = visitor.region("Use by namespace")
    expect(by_namespace.get_by_role("row", name=re.compile("research is mine"))).to_be_visible()
    by_namespace.locator(".switch").get_by_role("button", name="team").click()
    sums.get_by_role("button", name="vision").press("Enter")
    expect(visitor.page.get_by_label("Filter")).to_have_value("team:vision")
    expect(visitor.region("Pods with cards")).to_contain_text("13 pods")
    visitor.page.get_by_label("Filter").fill("")
    live.publish(scene())
    expect(visitor.region("Use by namespace")).to_contain_text("Use by namespace")


def test_spare_slices_and_services_that_are_not_told_stand_with_the_services(visit: Visits, live: LivePage) -> None:
    documents = scene()
    summary = documents["summary"]
    assert isinstance(summary, SummaryDocument)
    live.publish(
        {
            **documents,
            "summary": msgspec.structs.replace(summary, services_cut=12),
            "spare/web/1g.10gb": SpareSlices(queue="web", profile="1g.10gb", free=1, wanted=2, fault="no card has it"),
            "spare/web/2g.10gb": SpareSlices(queue="web", profile="2g.10gb", free=0, wanted=0, why="auto: none came"),
        }
    )
    services = visit().region("Services")
    told = [
        "Queue web keeps 1 of 2 1g.10gb free for the next pods of its services: no card has it.",
        "Queue web keeps no 2g.10gb free for the next pods of its services. Auto: none came.",
    ]
    expect(services.get_by_role("list", name="Spare slices").get_by_role("listitem")).to_have_text(told)
    expect(services).to_contain_text("Not shown: 12 more services, beyond the most that the controller reports.")
    live.publish(scene())
    expect(services.get_by_role("list", name="Spare slices")).to_have_count(0)


def test_own_pods_are_marked_and_stay_so(visit: Visits) -> None:
    visitor = visit()
    mine = visitor.region("Cards").locator(".own.part")
    expect(mine).to_have_count(0)
    visitor.region("Use by namespace").get_by_role("button", name="research is mine").click()
    expect(mine).to_have_count(1)
    visitor.page.reload()
    expect(visitor.region("Cards").get_by_text("your pods", exact=True)).to_be_visible()
    expect(mine).to_have_attribute("title", re.compile("research/trainer-0"))
    expect(visitor.region("Cards").get_by_role("button", name=re.compile("1 yours"))).to_have_count(1)
    visitor.region("Use by namespace").get_by_role("button", name="research is mine").click()
    expect(visitor.region("Your pods")).to_have_count(0)
    assert visitor.page.evaluate("localStorage.length") == 0


def test_pods_of_one_workload_that_wait_for_the_same_are_one_entry(visit: Visits, live: LivePage) -> None:
    pods = {
        f"waiting/team/w-{number}": WaitingDocument(
            namespace="team", pod=f"w-{number}", requests="1 x gpu", since=NOW - number, owner=owner
        )
        for number, owner in enumerate(("Job/a", "Job/a", "Job/b", "", "", "Job/a"))
    }
    live.publish({"summary": scene(history=False)["summary"], **pods})
    visitor = visit()
    queue = visitor.region("Waiting")
    expect(queue.get_by_role("listitem")).to_have_count(4)
    expect(queue.get_by_role("listitem").filter(has_text="team/w-5")).to_contain_text("and 2 more of Job/a")
    expect(queue.get_by_role("button", name="show all")).to_have_count(0)
    visitor.page.get_by_label("Filter").fill("ns:team")
    expect(visitor.region("Pods that match").get_by_role("listitem")).to_have_count(4)
    expect(visitor.region("Pods that match")).to_contain_text("and 2 more of Job/a waits")


def test_a_theme_can_be_chosen(visit: Visits) -> None:
    visitor = visit()
    colour = "getComputedStyle(document.body).backgroundColor"
    light = visitor.page.evaluate(colour)
    visitor.page.get_by_role("button", name="theme: system").click()
    assert visitor.page.evaluate(colour) != light
    visitor.page.reload()
    expect(visitor.page.get_by_role("button", name="theme: dark")).to_be_visible()


def test_a_lost_connection_is_shown_and_comes_back(visit: Visits, live: LivePage) -> None:
    visitor = visit()
    live.stop()
    expect(visitor.link).to_contain_text("not connected: ")
    live.start()
    live.publish(scene(pod_name="after"))
    expect(visitor.link).to_have_text("live")
    expect(visitor.page.get_by_text("after").first).to_be_visible()


def test_a_connection_that_broke_goes_on_where_it_ended(visit: Visits, live: LivePage) -> None:
    visitor, asked = visit.before(live), list[str | None]()

    def answer(route: Route) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) > 1:
            return route.continue_()
        text = 'id: ab.7\nevent: snapshot\ndata: {"set": {}, "gone": []}\n\n'
        return route.fulfill(content_type="text/event-stream", body=text)

    visitor.page.route("**/feed", answer)
    visitor.page.reload()
    visitor.await_live()
    assert asked == [None, "ab.7"]


def test_names_are_text_and_nothing_else(visit: Visits, live: LivePage) -> None:
    live.publish(scene(pod_name=HOSTILE))
    visitor = visit()
    expect(visitor.page.get_by_text("<img src=x").first).to_be_visible()
    assert visitor.page.locator("img").count() == 0
    visitor.check()


def test_the_longest_name_leaves_the_other_columns_their_room(visit: Visits, live: LivePage) -> None:
    live.publish(scene(pod_name="a" * 253))
    row = visit().page.get_by_role("row").filter(has_text="a" * 253).first
    for name in ("busy", "held"):
        cell = row.locator(f'[data-name="{name}"]')
        lines = cell.evaluate(
            "cell => { const r = document.createRange(); r.selectNodeContents(cell);"
            " return new Set([...r.getClientRects()].map(each => each.top)).size }"
        )
        assert lines == 1, name
    assert row.locator('[data-name="place"]').evaluate("cell => cell.clientWidth") >= 9 * 16


def test_an_empty_cluster_says_so(visit: Visits, live: LivePage) -> None:
    summary = msgspec.structs.replace(scene(history=False)["summary"], silent=0, cards=0)
    live.publish({"summary": summary})
    visitor = visit()
    expect(visitor.page.get_by_text("No agent has reported a card yet.")).to_be_visible()
    for nothing in (
        "No card is known, so none is known to be broken.",
        "No pod waits for cards.",
        "No pod is known to hold something.",
    ):
        expect(visitor.page.get_by_text(nothing)).to_be_visible()
    visitor.check()
    live.publish({"summary": msgspec.structs.replace(summary, silent=4, cards=4)})
    expect(visitor.page.get_by_text("No fault is known; 4 cards cannot be asked.")).to_be_visible()
    expect(visitor.page.get_by_text("Every card is well")).to_have_count(0)
    well = msgspec.structs.replace(summary, cards=4)
    live.publish({"summary": well})
    expect(visitor.page.get_by_text("Every card is well, and every agent answers.")).to_be_visible()
    lost = FailureDocument(node="instaslices", reason=KIND_MISSING)
    live.publish({"summary": well, "failure/instaslices": lost})
    expect(visitor.page.get_by_text(KIND_MISSING)).to_be_visible()
    expect(visitor.page.get_by_text("Every card is well")).to_have_count(0)

"""What a person who opens the page wants to know, in a real browser; each story leaves a page that keeps nobody out."""

import re

import pytest
from playwright.sync_api import expect
from tests.dashboard.browser.conftest import LivePage, Visits
from tests.dashboard.browser.scene import scene

from tessera.api.nodes.usage import DeviceUsage

HOSTILE = "<img src=x onerror=alert(1)>\u202e" + "x" * 200


@pytest.fixture(autouse=True)
def documents(live: LivePage) -> None:
    live.publish(scene())


def test_which_card_has_room_for_a_slice(visit: Visits) -> None:
    visitor = visit()
    visitor.page.get_by_role("button", name=re.compile("3g.20gb$")).first.click()
    cards = visitor.page.get_by_role("region", name="Cards", exact=True)
    expect(cards.get_by_text("1 of 4 shown")).to_be_visible()
    expect(cards.get_by_role("heading", name="gpu-1")).to_be_visible()
    expect(cards.get_by_role("heading", name="gpu-2")).to_have_count(0)
    visitor.check()
    visitor.picture("live-page-room")


def test_why_a_pod_waits(visit: Visits) -> None:
    visitor = visit()
    queue = visitor.page.get_by_role("region", name="Pods that wait")
    expect(queue.get_by_text("team/big")).to_be_visible()
    queue.get_by_role("button").click()
    expect(queue.get_by_text("a smaller slice has room now")).to_be_visible()
    visitor.check()
    visitor.picture("live-page-waiting")


def test_which_cards_are_held_and_not_used(visit: Visits) -> None:
    visitor = visit()
    visitor.page.get_by_label("State").select_option("held and not used")
    row = visitor.page.get_by_role("region", name="Cards", exact=True).get_by_role("button", name=re.compile("H100"))
    row.click()
    expect(visitor.page.get_by_text("never used", exact=True).last).to_be_visible()
    expect(visitor.page.get_by_text("no process in the 120 min")).to_be_visible()
    visitor.check()
    visitor.picture("live-page-idle")


def test_which_node_is_broken_and_why(visit: Visits) -> None:
    visitor = visit()
    sick = visitor.page.get_by_role("region", name="Cards that are not well")
    for text in ("gpu-2, card 1", "needs a reset", "XID 48", "research/trainer-0", "once nobody holds it"):
        expect(sick.get_by_text(text).first).to_be_visible()
    expect(visitor.page.get_by_role("region", name="Nodes that do not answer").get_by_text("gpu-3")).to_be_visible()
    visitor.check()


def test_tiles_come_and_go(visit: Visits, live: LivePage) -> None:
    visitor = visit()
    tile = visitor.page.get_by_title("1g.5gb: free")
    expect(tile).to_have_count(0)
    live.publish(scene(DeviceUsage(uuid="MIG-2", profile="1g.5gb", start=0, size=1, share=0.125)))
    expect(tile).to_be_visible()
    live.publish(scene())
    expect(tile).to_have_count(0)
    visitor.check()


def test_a_view_can_be_sent_to_somebody(visit: Visits) -> None:
    visitor = visit()
    visitor.page.get_by_label("Filter").fill("H100 never")
    expect(visitor.page.get_by_text("1 of 4 shown")).to_be_visible()
    other = visit(visitor.page.url.partition("/#")[2] and "#" + visitor.page.url.partition("/#")[2])
    expect(other.page.get_by_label("Filter")).to_have_value("H100 never")
    expect(other.page.get_by_text("1 of 4 shown")).to_be_visible()


def test_the_keyboard_is_enough(visit: Visits) -> None:
    visitor = visit()
    keys = visitor.page.keyboard
    keys.press("?")
    expect(visitor.page.get_by_text("next card, card before")).to_be_visible()
    keys.press("j")
    keys.press("j")
    keys.press("Enter")
    expect(visitor.page.get_by_role("button", expanded=True).first).to_be_visible()
    keys.press("/")
    keys.type("T4")
    expect(visitor.page.get_by_text("1 of 4 shown")).to_be_visible()
    keys.press("Escape")
    expect(visitor.page.get_by_label("Filter")).to_have_value("")
    visitor.check()


def test_the_last_hours_of_the_fleet_and_of_a_card(visit: Visits) -> None:
    visitor = visit()
    past = visitor.page.get_by_role("region", name="The last hours")
    expect(past.get_by_role("img", name=re.compile("busy: now 26 %, 20 % to 58 %"))).to_be_visible()
    visitor.page.get_by_role("button", name=re.compile("^0 H100")).click()
    expect(visitor.page.get_by_role("img", name=re.compile("memory: now 30 %"))).to_be_visible()
    visitor.check()
    visitor.picture("live-page-history")


def test_a_node_on_its_way(visit: Visits) -> None:
    visitor = visit()
    section = visitor.page.get_by_role("region", name="Drivers and nodes on their way")
    expect(section.get_by_text("pulling its driver's image")).to_be_visible()
    expect(section.get_by_title("ready 20 s")).to_be_visible()
    visitor.check()


def test_a_lost_connection_is_shown_and_comes_back(visit: Visits, live: LivePage) -> None:
    visitor = visit()
    live.stop()
    expect(visitor.page.get_by_role("status")).to_have_text("not connected")
    live.start()
    live.publish(scene(pod_name="after"))
    expect(visitor.page.get_by_role("status")).to_have_text("live", timeout=30_000)
    expect(visitor.page.get_by_text("after").first).to_be_visible()


def test_names_are_text_and_nothing_else(visit: Visits, live: LivePage) -> None:
    live.publish(scene(pod_name=HOSTILE))
    visitor = visit()
    expect(visitor.page.get_by_text("<img src=x").first).to_be_visible()
    assert visitor.page.locator("img").count() == 0
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visitor.check()


def test_an_empty_cluster_says_so(visit: Visits, live: LivePage) -> None:
    live.publish({"summary": scene(history=False)["summary"]})
    visitor = visit()
    expect(visitor.page.get_by_text("No agent has reported a card yet.")).to_be_visible()
    visitor.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_every_width_and_theme(width: int, theme: str, visit: Visits) -> None:
    visitor = visit(width=width, theme=theme)
    expect(visitor.page.get_by_title("3g.20gb: vllm")).to_be_visible()
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visitor.check()
    visitor.picture(f"live-page-{width}-{theme}", whole=False)

"""``tessera idle``: what it says of leases that are used, unused and not judged."""

from collections.abc import Sequence

import pytest

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.silence import Silence, SilentNode
from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeUsage
from tessera.cli.idle import idle_lines
from tessera.cli.top.columns import table
from tessera.observe.reading import Usage
from tessera.observe.top_view import TopView
from tessera.observe.usage_rows import card_rows, lease_rows

BUSY = ("busy", "up to 90% busy in the last 30 min")
UNMEASURED = ("unknown", "processes hold it, and its activity cannot be measured")
YOUNG = ("unknown", "held for 2 min, no process yet")
UNUSED = ("never_used", "no process in the 43 min since it is held")


def shown(leases: Sequence[tuple[str, str]], *, unknown: bool = False, namespace: str | None = None) -> str:
    """The output for leases of these states and evidence, each on a card of its own."""
    found = tuple(
        LeaseUsage(namespace="team", pod=f"p{n}", uid=str(n), device=str(n), state=state, evidence=evidence)
        for n, (state, evidence) in enumerate(leases)
    )
    cards = tuple(CardUsage(uuid=str(n), index=n) for n in range(max(1, len(leases))))
    nodes = (NodeUsage(node="n1", cards=cards, leases=found),)
    usage = Usage(
        fleet=FleetUsage(nodes=nodes, failures=()), cards=card_rows(nodes), leases=lease_rows(nodes), agents=1
    )
    return "\n".join(idle_lines(usage, namespace=namespace, unknown=unknown))


@pytest.mark.parametrize(
    ("leases", "text"),
    [
        ([], "No pod holds a card: 0 leases on 1 card."),
        ([BUSY], "Every pod uses what it holds: 1 lease on 1 card."),
        (
            [BUSY, UNMEASURED, UNMEASURED, YOUNG],
            (
                "No lease is known to be unused: 1 of 4 leases on 4 cards is in use.\n"
                "3 leases cannot be judged (the activity of 2 cannot be measured, 1 was not watched for long enough):"
                " tessera idle --unknown lists them."
            ),
        ),
    ],
)
def test_without_a_row_it_says_no_more_than_the_states_do(leases: Sequence[tuple[str, str]], text: str) -> None:
    assert shown(leases) == text


def test_leases_that_cannot_be_judged_are_counted_below_the_table_unless_they_are_in_it() -> None:
    below = "1 lease cannot be judged (1 was not watched for long enough): tessera idle --unknown lists it."
    assert shown([UNUSED, YOUNG]).endswith(below)
    assert "cannot be judged" not in shown([UNUSED, YOUNG], unknown=True)
    assert "team/p1" in shown([UNUSED, YOUNG], unknown=True)


def test_the_leases_of_other_namespaces_do_not_count() -> None:
    assert shown([BUSY], namespace="other") == "No pod of namespace other holds a card: 0 leases on 1 card."


@pytest.mark.parametrize(
    ("agents", "text"),
    [(0, "no card answers; tessera doctor says whether Tessera is installed"), (1, "no card answers")],
)
def test_without_an_answer_nothing_is_said_of_pods_and_without_an_agent_the_doctor_is_named(
    agents: int, text: str
) -> None:
    silent = SilentNode(node="n1", reason="no pod", kind=Silence.NEVER_RAN)
    usage = Usage(fleet=FleetUsage(nodes=(), failures=(silent,)), cards=(), leases=(), agents=agents)
    assert list(idle_lines(usage, namespace=None, unknown=False)) == [f"N{text[1:]}. 1 node did not answer."]
    assert table(TopView(), usage) == ["0 nodes, 0 cards, 0 pods   busy n/a   memory n/a   power n/a", text]

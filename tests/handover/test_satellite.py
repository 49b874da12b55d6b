"""Which lenders of ended pods are evicted first."""

from collections import Counter

from tessera.handover.satellite import EVICTED, choose_lenders
from tessera.kube.resources import ObjectMeta, Pod
from tessera.kube.resources.meta import Uid


def lenders(namespace: str, count: int) -> list[Pod]:
    return [
        Pod(metadata=ObjectMeta(name=f"l-{n}", namespace=namespace, uid=Uid(f"{namespace}-{n}"))) for n in range(count)
    ]


def test_a_namespace_with_thousands_of_lenders_that_stay_holds_up_no_other() -> None:
    hostile = lenders("hostile", 3_000)
    refused = {each.metadata.uid for each in hostile[:1_000]}
    found = choose_lenders([*hostile, *lenders("team-a", 3), *lenders("team-b", 1)], refused)
    assert len(found) == EVICTED
    assert Counter(each.metadata.namespace for each in found) == {"hostile": EVICTED - 4, "team-a": 3, "team-b": 1}
    assert not refused & {each.metadata.uid for each in found}


def test_a_lender_that_was_refused_is_asked_again_after_the_others() -> None:
    first, second = lenders("team-a", 2)
    assert choose_lenders([first, second], {first.metadata.uid}) == [second, first]

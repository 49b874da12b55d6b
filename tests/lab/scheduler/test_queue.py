"""The order of decisions."""

from tessera_lab.scheduler.scheduler import SchedulingQueue
from tessera_lab.scheduler.state.node_cache import CachedPod, build_pod_info


def pod(name: str, priority: int = 0, created: float = 0.0) -> CachedPod:
    return build_pod_info(f"default/{name}", name, created, {"priority": priority})


def names(queue: SchedulingQueue) -> list[str]:
    found = []
    while (each := queue.pop()) is not None:
        found.append(each.uid)
    return found


def test_priority_first_then_age_then_name() -> None:
    queue = SchedulingQueue()
    for each in (pod("young", created=2), pod("b", created=1), pod("a", created=1), pod("urgent", 100, 3)):
        queue.add(each)
    assert names(queue) == ["urgent", "a", "b", "young"]


def test_a_pod_put_aside_comes_back_only_when_something_changes() -> None:
    queue = SchedulingQueue()
    queue.put_back(pod("a"))
    assert names(queue) == []
    queue.retry_all()
    assert names(queue) == ["a"]
    assert queue.set_aside == 0


def test_the_newest_form_of_a_pod_is_decided_once() -> None:
    queue = SchedulingQueue()
    queue.add(pod("a"))
    queue.add(pod("a", priority=5))
    assert len(queue) == 1
    assert [queue.pop(), queue.pop()] == [pod("a", priority=5), None]


def test_a_pod_that_is_gone_is_not_decided() -> None:
    queue = SchedulingQueue()
    queue.add(pod("a"))
    queue.remove("a")
    assert names(queue) == []

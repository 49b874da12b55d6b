"""Threads that share a library, and one that needs it alone."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Event

from tessera.nvml.asynchronous import SharedLock


def test_those_that_share_run_at_once_and_the_one_alone_after_them() -> None:
    use, meet, story = SharedLock(), Barrier(3, timeout=60), list[str]()
    go = Event()

    def share() -> None:
        meet.wait()
        go.wait(60)
        story.append("shared")

    with ThreadPoolExecutor(4) as threads:
        both = [threads.submit(use.run_shared, share) for _ in range(2)]
        meet.wait()
        last = threads.submit(use.run_alone, lambda: story.append("alone"))
        go.set()
        for each in (*both, last):
            each.result(10)
    assert story == ["shared", "shared", "alone"]


def test_a_failure_lets_the_others_go_on() -> None:
    use = SharedLock()
    for act in (use.run_shared, use.run_alone):
        with suppress(ZeroDivisionError):
            act(lambda: 1 / 0)
    assert (use.run_shared(lambda: 1), use.run_alone(lambda: 2)) == (1, 2)

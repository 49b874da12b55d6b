"""An image that kubelets could not pull counts as not there, for a while."""

from tessera.clock import LoopClock
from tessera.driver.images.image_pull_failures import UNPULLABLE_FOR, Unpullable
from tessera_lab.simulation.virtual_time import run_virtual

IMAGE = "registry.local/driver:1"


def test_what_could_not_be_pulled_is_news_once_and_comes_back_by_itself() -> None:
    async def story() -> None:
        clock = LoopClock(0)
        known = Unpullable(clock)
        assert known.due() is None
        assert known.note(IMAGE, "not found")
        assert not known.note(IMAGE, "back-off")
        assert known.texts == {IMAGE: "back-off"}
        assert known.due() == UNPULLABLE_FOR
        await clock.sleep(UNPULLABLE_FOR)
        assert not known.texts
        assert known.due() is None
        assert known.note(IMAGE, "not found")

    run_virtual(story())


def test_an_image_that_a_node_runs_can_be_pulled() -> None:
    async def story() -> None:
        known = Unpullable(LoopClock(0))
        known.note(IMAGE, "not found")
        known.forget(IMAGE)
        assert not known.texts

    run_virtual(story())

"""An image that kubelets could not pull counts as not there, for a while."""

from tessera.clock import LoopClock
from tessera.driver.registry.image_lookups import PULL_FAILURE_SECONDS, ImagePullFailures
from tessera_lab.simulation.virtual_time import run_virtual

IMAGE = "registry.local/driver:1"


def test_what_could_not_be_pulled_is_news_once_and_comes_back_by_itself() -> None:
    async def story() -> None:
        clock = LoopClock(0)
        known = ImagePullFailures(clock)
        assert known.seconds_until_due() is None
        assert known.add(IMAGE, "not found")
        assert not known.add(IMAGE, "back-off")
        assert known.reasons == {IMAGE: "back-off"}
        assert known.seconds_until_due() == PULL_FAILURE_SECONDS
        await clock.sleep(PULL_FAILURE_SECONDS)
        assert not known.reasons
        assert known.seconds_until_due() is None
        assert known.add(IMAGE, "not found")

    run_virtual(story())


def test_an_image_that_a_node_runs_can_be_pulled() -> None:
    async def story() -> None:
        known = ImagePullFailures(LoopClock(0))
        known.add(IMAGE, "not found")
        known.forget(IMAGE)
        assert not known.reasons

    run_virtual(story())

"""The slicer is told of an expected end when it has moved enough to matter."""

from tests.support.forecast_cluster import ForecastCluster

from tessera.api.names import PodUid
from tessera.forecast.queue.published_reasons import ChangedEnds

POD, OTHER = PodUid("pod"), PodUid("other")
WHOLE = "7g.40gb"


def test_an_end_is_told_once_and_again_when_it_has_moved_by_a_quarter_of_what_is_left() -> None:
    ends = ChangedEnds()
    ends.update({POD: 1000.0, OTHER: 100_000.0}, 0.0)
    assert ends.pop() == {POD: 1000.0, OTHER: 100_000.0}
    assert ends.pop() == {}
    ends.update({POD: 1200.0, OTHER: 120_000.0}, 100.0)
    assert ends.pop() == {}
    ends.update({POD: 1500.0, OTHER: 120_000.0}, 400.0)
    assert ends.pop() == {POD: 1500.0}


def test_a_pod_that_ended_is_forgotten() -> None:
    ends = ChangedEnds()
    ends.update({POD: 1000.0}, 0.0)
    ends.update({}, 0.0)
    assert ends.pop() == {}
    ends.update({POD: 1000.0}, 0.0)
    assert ends.pop() == {POD: 1000.0}


def test_the_forecaster_tells_when_half_of_such_leases_have_ended() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    cluster.live(*[300.0] * 20)
    holder = cluster.submit("holder", WHOLE)
    began = cluster.now
    cluster.submit("next", WHOLE)
    cluster.forecast()
    assert cluster.forecaster.ends.pop() == {holder.uid: began + 300.0}


def test_the_ends_are_known_before_the_page_is_made() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    cluster.live(*[300.0] * 20)
    holder = cluster.submit("holder", WHOLE)
    began = cluster.now
    cluster.submit("next", WHOLE)
    cluster.expect_ends()
    assert cluster.forecaster.ends.pop() == {holder.uid: began + 300.0}
    assert cluster.forecaster.page.pods == ()

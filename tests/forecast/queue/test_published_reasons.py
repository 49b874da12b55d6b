"""What stands before a waiting pod is searched at a bounded cost for all pods together."""

from dataclasses import replace

from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.controller.objects.pod_constraints import PodAffinityRule, PodRelations, PodSelection
from tessera.forecast.queue.published_reasons import PublishedReasons
from tessera.kube.resources.selectors import Requirement


def test_pods_with_other_slices_each_do_not_make_a_forecast_long() -> None:
    """A tenant may create thousands of them, and each search takes up to 0.3 s."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for number in range(16):
        cluster.node(f"n{number}", count=2)
    small = [cluster.pod(f"small-{index}", "1g.5gb") for index in range(16 * 14)]
    cluster.settle()
    for pod in small:
        ((node, _, _),) = cluster.where(pod)
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))
    shapes = [["1g.5gb"] * one + ["2g.10gb"] * two for one in range(1, 9) for two in range(1, 4)]
    pods = [cluster.pod(f"many-{index}", *shape) for index, shape in enumerate(shapes)]
    cluster.settle()
    finder = PublishedReasons(cluster.slicer.state, {})
    found = [finder.find(pod, cluster.slicer.state.cluster.index.open_to(pod.constraints)) for pod in pods]
    assert {each.case for each in found} == {"full"}
    assert finder.searches == len(shapes)
    assert found[0].blockers
    assert not found[-1].blockers
    single = cluster.pod("single", "3g.20gb")
    cluster.settle()
    everywhere = cluster.slicer.state.cluster.index.open_to(single.constraints)
    assert finder.find(single, everywhere).blockers, "one slice is always explained"


def test_slices_of_a_pod_that_no_record_names_have_a_holder_in_words() -> None:
    """A new controller finds the result alone, while the agent still takes back the slices of a deleted pod."""
    cluster = SlicerCluster()
    cluster.node("n1")
    gone = cluster.pod("gone", "7g.40gb")
    cluster.settle()
    cluster.patch("n1", {"spec": {"podAllocationRequests": {gone.uid: None}}})
    cluster.remove(gone)
    cluster.restart()
    waiting = cluster.pod("waiting", "7g.40gb")
    cluster.run()
    everywhere = cluster.slicer.state.cluster.index.open_to(waiting.constraints)
    found = PublishedReasons(cluster.slicer.state, {}).find(waiting, everywhere)
    assert [(each.pod, each.node) for each in found.blockers] == [("a deleted pod", "n1")]


def test_no_pod_stands_before_another_on_a_node_whose_rules_about_pods_refuse_it() -> None:
    """The emptiest node refuses the pod, since the anti-affinity of a pod there selects it."""
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.node("n2")
    selection = PodSelection(frozenset({"default"}), None, (Requirement("app", "In", ("server",)),))
    opposed = PodRelations(anti_affinity=(PodAffinityRule(selection, "kubernetes.io/hostname"),))
    large = [cluster.pod("first", "7g.40gb")]
    cluster.settle()
    cluster.pod("guard", "4g.20gb", relations=opposed)
    cluster.settle()
    cluster.pod("beside", "2g.10gb")
    waiting = cluster.pod("waiting", "3g.20gb", labels=(("app", "server"),))
    cluster.settle()
    everywhere = cluster.slicer.state.cluster.index.open_to(waiting.constraints)
    found = PublishedReasons(cluster.slicer.state, {}).find(waiting, everywhere)
    assert (found.case, [each.pod for each in found.blockers]) == ("full", [each.key for each in large])


def test_pods_that_filled_the_room_later_stand_before_one_that_rules_about_pods_restrict() -> None:
    """The last plan of the pod does not know them."""
    cluster = SlicerCluster()
    cluster.node("n1")
    small = cluster.pod("small", "1g.5gb", priority=1)
    cluster.settle()
    selection = PodSelection(frozenset({"default"}), None, (Requirement("app", "In", ("other",)),))
    alone = PodRelations(anti_affinity=(PodAffinityRule(selection, "kubernetes.io/hostname"),))
    waiting = cluster.pod("waiting", "7g.40gb", relations=alone)
    cluster.settle()
    later = cluster.pod("later", "3g.20gb")
    cluster.settle()
    everywhere = cluster.slicer.state.cluster.index.open_to(waiting.constraints)
    found = PublishedReasons(cluster.slicer.state, {}).find(waiting, everywhere)
    assert {each.pod for each in found.blockers} == {small.key, later.key}

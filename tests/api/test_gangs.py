"""The gang of a pod, by the labels and annotations of four conventions."""

from collections.abc import Mapping

import pytest

from tessera.api.pod_annotations import Gang, GangError, read_gang

OWNER = ("train-job", "uid-1")


def read(labels: Mapping[str, str], annotations: Mapping[str, str], owner: tuple[str, str] = OWNER) -> Gang | None:
    return read_gang("team", labels, annotations, owner)


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, None),
        (
            {"tessera.dev/gang": "a"},
            {"tessera.dev/gang-size": "4"},
            Gang("team/tessera.dev/gang=a", "a", 4),
        ),
        (
            {"kueue.x-k8s.io/pod-group-name": "b"},
            {"kueue.x-k8s.io/pod-group-total-count": "2"},
            Gang("team/kueue.x-k8s.io/pod-group-name=b", "b", 2),
        ),
        (
            {"kueue.x-k8s.io/pod-group-name": "older"},
            {"kueue.x-k8s.io/pod-group-name": "b", "kueue.x-k8s.io/pod-group-total-count": "2"},
            Gang("team/kueue.x-k8s.io/pod-group-name=b", "b", 2),
        ),
        (
            {"leaderworkerset.sigs.k8s.io/worker-index": "0"},
            {"kueue.x-k8s.io/pod-group-name": "b", "kueue.x-k8s.io/pod-group-total-count": "2"},
            Gang("team/kueue.x-k8s.io/pod-group-name=b", "b", 2, leads=True),
        ),
        ({"leaderworkerset.sigs.k8s.io/worker-index": "0"}, {}, None),
        (
            {"kueue.x-k8s.io/pod-group-name": "b"},
            {
                "kueue.x-k8s.io/pod-group-total-count": "2",
                "kueue.x-k8s.io/pod-group-fast-admission": "true",
            },
            None,
        ),
        (
            {"scheduling.x-k8s.io/pod-group": "c"},
            {"tessera.dev/gang-size": "3"},
            Gang("team/scheduling.x-k8s.io/pod-group=c", "c", 3),
        ),
        ({"scheduling.x-k8s.io/pod-group": "c"}, {}, Gang("team/scheduling.x-k8s.io/pod-group=c", "c", 0)),
        ({"scheduling.x-k8s.io/pod-group": ""}, {}, None),
        (
            {"pod-group.scheduling.sigs.k8s.io": "d"},
            {"tessera.dev/gang-size": "3"},
            Gang("team/pod-group.scheduling.sigs.k8s.io=d", "d", 3),
        ),
        (
            {
                "pod-group.scheduling.sigs.k8s.io/name": "e",
                "pod-group.scheduling.sigs.k8s.io/min-available": "5",
            },
            {},
            Gang("team/pod-group.scheduling.sigs.k8s.io/name=e", "e", 5),
        ),
        ({"pod-group.scheduling.sigs.k8s.io/name": "e"}, {}, None),
        ({}, {"tessera.dev/gang-size": "3"}, Gang("team/owner=uid-1", "train-job", 3)),
        ({"tessera.dev/gang": "a"}, {"tessera.dev/gang-size": "1"}, None),
    ],
)
def test_the_first_convention_that_a_pod_uses_counts(
    labels: Mapping[str, str], annotations: Mapping[str, str], expected: Gang | None
) -> None:
    assert read(labels, annotations) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "four", "4.0", "٤", "1" * 5_000])
def test_a_size_that_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(GangError, match=r'annotation tessera.dev/gang-size: .* is no number of pods; write .*"4"'):
        read({"tessera.dev/gang": "a"}, {"tessera.dev/gang-size": text})


def test_the_size_of_a_job_counts_in_the_template_of_a_job_alone() -> None:
    with pytest.raises(GangError, match=r'"parallelism" counts in the pod template of a Job'):
        read({"tessera.dev/gang": "a"}, {"tessera.dev/gang-size": "parallelism"})


def test_a_label_with_a_wrong_size_is_named_as_a_label() -> None:
    prefix = "pod-group.scheduling.sigs.k8s.io"
    with pytest.raises(GangError, match=f'label {prefix}/min-available: "many" is no number of pods'):
        read({f"{prefix}/name": "e", f"{prefix}/min-available": "many"}, {})


def test_a_size_above_the_limit_is_refused() -> None:
    with pytest.raises(GangError, match="a gang of 257 pods is too large; at most 256 pods are allowed"):
        read({"tessera.dev/gang": "a"}, {"tessera.dev/gang-size": "257"})


def test_a_gang_without_a_size_and_a_size_without_a_gang_are_refused() -> None:
    with pytest.raises(GangError, match=r"annotation tessera\.dev/gang-size is missing"):
        read({"tessera.dev/gang": "a"}, {})
    with pytest.raises(GangError, match=r"neither a controller nor the label tessera\.dev/gang"):
        read({}, {"tessera.dev/gang-size": "2"}, ("", ""))

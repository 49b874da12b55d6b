"""Which labels of others say that a node has GPUs."""

import pytest

from tessera.api.gpu_labels import ACCELERATOR_LABELS, PRESENT_LABELS, labels_say_gpu


@pytest.mark.parametrize("name", PRESENT_LABELS)
@pytest.mark.parametrize(("value", "says"), [("true", True), ("false", False), ("", False)])
def test_what_was_discovered_counts_if_it_is_true(name: str, value: str, says: bool) -> None:
    assert labels_say_gpu({name: value}) is says


@pytest.mark.parametrize("name", ACCELERATOR_LABELS)
def test_an_autoscalers_label_counts_whatever_its_value(name: str) -> None:
    assert labels_say_gpu({name: "nvidia-t4"})
    assert labels_say_gpu({name: ""})


def test_the_device_class_of_another_vendor_says_nothing() -> None:
    assert not labels_say_gpu({})
    assert not labels_say_gpu({"feature.node.kubernetes.io/pci-0302_1002.present": "true", "gpu": "true"})

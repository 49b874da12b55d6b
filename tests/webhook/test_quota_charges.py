"""What a ResourceQuota counts for a pod is what kubelet takes for it, of every profile and of GPU memory."""

from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.api.slice_requests import ContainerSlices, pod_slices
from tessera.mig.names import parse_profile_name
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.pod_json import apply_operations
from tessera.webhook.slice_admission import patch_for_slices
from tessera_lab.apiserver.admission.resource_quota import PODS, object_usage

PROFILES = ("1g.5gb", "1g.5gb.me", "2g.10gb", "3g.20gb")
MEMORY = "requests.instaslice.redhat.com/accelerator-memory-quota"

slices = st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 3), max_size=2)
inits = st.lists(st.tuples(slices, st.booleans()), max_size=4)


def container(name: str, counts: dict[str, int], *, sidecar: bool = False) -> dict[str, Any]:
    limits = {f"nvidia.com/mig-{profile}": str(count) for profile, count in counts.items()}
    made: dict[str, Any] = {"name": name, "resources": {"limits": limits, "requests": dict(limits)}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


@given(apps=st.lists(slices, min_size=1, max_size=3), first=inits)
def test_a_quota_counts_what_kubelet_takes(
    apps: list[dict[str, int]], first: list[tuple[dict[str, int], bool]]
) -> None:
    """Kubelet is modelled by ``pod_slices``, the quota by the lab's API server: two independent rules."""
    pod = {
        "metadata": {"name": "p"},
        "spec": {
            "initContainers": [container(f"i{n}", each, sidecar=stays) for n, (each, stays) in enumerate(first)],
            "containers": [container(f"c{n}", each) for n, each in enumerate(apps)],
            "resources": {"requests": {"cpu": "8", "memory": "16Gi"}},
        },
    }
    capabilities = Capabilities()
    patched = apply_operations(pod, patch_for_slices(pod, capabilities, capabilities.every))
    used = object_usage(PODS, patched)
    taken = Counter(
        pod_slices(
            [
                *(ContainerSlices(name="i", counts=each, init=True, sidecar=stays) for each, stays in first),
                *(ContainerSlices(name="c", counts=each) for each in apps),
            ]
        )
    )
    counted = {profile: used.get(f"requests.nvidia.com/mig-{profile}", Decimal(0)) for profile in PROFILES}
    assert counted == {profile: taken[profile] for profile in PROFILES}
    memory = sum(parse_profile_name(profile).memory_gb * count for profile, count in taken.items())
    assert used.get(MEMORY, 0) == memory * 2**30
    assert used["requests.cpu"] == 8

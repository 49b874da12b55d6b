"""A catalogue of everything that a cluster with managed drivers pulls, with the sizes and rates of a cost model.

Driver images are added by whoever tells a story: :func:`driver_image` for one with finished modules,
:func:`builder_image` for one that compiles.
"""

from collections.abc import Collection, Mapping

from tessera_lab.drivers.driver_containers import Draw, builder, exact, precompiled
from tessera_lab.drivers.driver_stack import container_toolkit, driver_manager, tessera_image
from tessera_lab.drivers.image_builds import image_build
from tessera_lab.kubelet.images.catalogue import Catalogue, SimulatedImage
from tessera_lab.simulation.cost_model import CostModel

#: The cluster's own registry, as OpenShift calls it.
INTERNAL_REGISTRY = "image-registry.openshift-image-registry.svc:5000"


def driver_image(version: str, costs: CostModel, *, kernel: str = "", draw: Draw = exact) -> SimulatedImage:
    """A driver image with finished modules; ``kernel`` as for :func:`precompiled`."""
    return SimulatedImage(size_mib=costs.precompiled_mib, program=precompiled(version, costs, kernel=kernel, draw=draw))


def builder_image(version: str, costs: CostModel, *, draw: Draw = exact) -> SimulatedImage:
    """A driver image that compiles on the node."""
    return SimulatedImage(
        size_mib=costs.builder_mib, program=builder(version, costs, draw=draw), architectures=("amd64", "arm64")
    )


def catalogue(
    costs: CostModel,
    images: Mapping[str, SimulatedImage] | None = None,
    *,
    internal: Collection[str] = (INTERNAL_REGISTRY,),
    draw: Draw = exact,
    kind: type[Catalogue] = Catalogue,
) -> Catalogue:
    """All registries of a world.

    Args:
        costs: sizes and rates.
        images: what there is besides the toolkit, the driver manager, buildah and this project's image.
        internal: registries (hosts) within the cluster; all others are public.
        draw: chance.
        kind: of catalogue, such as one that remembers what it answered.
    """
    both = ("amd64", "arm64")
    made = kind(
        {
            "nvcr.io/nvidia/k8s/container-toolkit": SimulatedImage(
                size_mib=costs.toolkit_mib, program=container_toolkit(costs, draw=draw), architectures=both
            ),
            "*/k8s-driver-manager": SimulatedImage(
                size_mib=costs.manager_mib, program=driver_manager(costs, draw=draw), architectures=both
            ),
            "tessera": SimulatedImage(
                size_mib=costs.tessera_mib, program=tessera_image(costs, draw=draw), architectures=both
            ),
            **(images or {}),
        },
        bandwidth=dict.fromkeys(internal, costs.internal_mib_s),
        default_bandwidth=costs.public_mib_s,
        unpack=costs.unpack_mib_s,
        latency=costs.registry_seconds,
        unnamed=SimulatedImage(size_mib=costs.workload_mib, architectures=both),
    )
    made.name("*/buildah/*", SimulatedImage(program=image_build(made, costs, draw=draw), architectures=both))
    return made

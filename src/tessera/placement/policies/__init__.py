"""The placement policies by name. Tessera uses the first; the others are for comparison."""

from collections.abc import Callable, Mapping

from tessera.placement.policies.best_fit import BestFit
from tessera.placement.policies.das import Das
from tessera.placement.policies.first_fit import FirstFit
from tessera.placement.policies.fragmentation_gradient import FragmentationGradient
from tessera.placement.policy import Policy

#: Name of a policy -> what makes one.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "fragmentation-gradient": FragmentationGradient,
    "best-fit": BestFit,
    "DAS": Das,
    "first-fit": FirstFit,
}

"""Means that others have published for the same experiments, to be shown beside what the lab finds.

From Red Hat's "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift": OpenShift 4.13, AWS
g4dn.xlarge, Tesla T4. Number of samples and spread were not published.
"""

from collections.abc import Mapping

from tessera.provisioning.experiments.results import AUTOSCALE, POLICY_RESET, Samples

#: Red Hat's means in seconds, by experiment and scenario.
RED_HAT: Mapping[tuple[str, str], float] = {
    (POLICY_RESET, "built"): 308.0,
    (POLICY_RESET, "precompiled-public"): 132.0,
    (AUTOSCALE, "built"): 369.0,
    (AUTOSCALE, "precompiled-public"): 217.0,
    (AUTOSCALE, "precompiled-internal"): 207.0,
}


def red_hats(samples: Samples) -> float | None:
    """Red Hat's mean of a scenario that the lab played; None for others and for what was measured on a cluster."""
    return RED_HAT.get((samples.experiment, samples.scenario)) if samples.simulated else None

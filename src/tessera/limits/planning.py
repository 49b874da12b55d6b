"""Limits on the work of one decision of the controller, and on results that it caches for the next one."""

from tessera.limits import Limit

BATCH_PODS = Limit(
    1_000,
    "pods",
    "waiting pods that one step of the controller plans together",
    "pods that are created together are packed together; more of them are planned in further steps",
)
DECISION_STEPS = Limit(
    40_000,
    "steps",
    "checks in one step of the controller's planning, a check being one node asked about one pod",
    "up to 0.3 s of CPU; what is left is planned in the next step, after the lease is renewed and events are read",
)
QUEUE_WEIGHT = Limit(
    1_000,
    "units of weight",
    "weight of a Queue",
    "a share a thousand times that of another is a mistake in the unit",
)
QUEUE_NAMESPACES = Limit(
    1_000,
    "namespaces",
    "namespaces that a Queue lists",
    "more are written as *; the list is read at each change of the object",
)
SPARE_SLICES = Limit(
    64,
    "slices",
    "spare slices of a Queue",
    "each is applied to every decision; more are a node of their own",
)
NEIGHBOUR_STEPS = Limit(
    30_000,
    "steps",
    "comparisons for one pod's rules about other pods, each time that they are applied",
    "some 30 ms; a pod of 200 workloads with 50,000 pods takes 1,300; a rule beyond it is left to the scheduler",
)
CARD_MODELS = Limit(
    256,
    "tables",
    "different tables of MIG profiles that the controller caches besides those in use",
    "a hostile node may write a new table each time; real clusters have a few",
)

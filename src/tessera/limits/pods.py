"""Limits on pods: their requests, their rules about nodes and other pods, their annotations."""

from tessera.limits import Limit

POD_CONTAINERS = Limit(
    200,
    "containers",
    "containers of a slice pod, init containers included",
    "a node runs a few hundred containers in all; requests of each are added up",
)
POD_SLICES = Limit(
    16 * 8,
    "slices",
    "slices that one pod asks for",
    "a pod runs on one node, and the largest servers have 16 cards of 8 memory slots",
)
POD_QUANTITIES = Limit(
    1_000,
    "quantities",
    "quantities in requests and limits of a slice pod, all containers together",
    "five for each of 200 containers; each is parsed, and compared with every node",
)
NODE_AFFINITY_TERMS = Limit(
    100,
    "terms",
    "terms of a slice pod's required node affinity",
    "one term says what hundreds do, with a list of values; each is tested for every node",
)
NODE_AFFINITY_EXPRESSIONS = Limit(
    500,
    "expressions",
    "expressions in all terms of a slice pod's required node affinity",
    "several for each term; each is tested for every node",
)
NODE_AFFINITY_VALUES = Limit(
    5_000,
    "values",
    "values in all expressions of a slice pod's required node affinity",
    "a list that names every node of the largest clusters fits",
)
NODE_SELECTOR_LABELS = Limit(
    100,
    "labels",
    "labels in a slice pod's nodeSelector",
    "a node has a few dozen labels; each is tested for every node",
)
TOLERATIONS = Limit(
    200,
    "tolerations",
    "tolerations of a slice pod",
    "clusters have a few kinds of taints; the controller stores them for every pod that waits",
)
POD_AFFINITY_TERMS = Limit(
    20,
    "terms",
    "terms of a pod's required affinity, and of its required anti-affinity, to other pods",
    "applications name a handful of neighbours; each is compared with all pods, and again when one of them changes",
)
SPREAD_CONSTRAINTS = Limit(
    20,
    "constraints",
    "topology spread constraints of a slice pod",
    "zone, rack and host are three; each counts pods in every domain",
)
SELECTOR_VALUES = Limit(
    1_000,
    "values",
    "labels and values in all selectors of a slice pod's affinity to pods and of its spread constraints",
    "dozens for each term; each is compared with the labels of pods",
)
HOST_PORTS = Limit(
    200,
    "ports",
    "ports of a slice pod's containers, all together",
    "one for each of 200 containers; those of the host are compared with every node",
)
POD_CLAIMS = Limit(
    100,
    "volumes",
    "PersistentVolumeClaims of a slice pod",
    "nodes attach fewer volumes; each is tested for every node",
)
OWN_ANNOTATIONS = Limit(
    64,
    "annotations",
    "annotations of a pod under tessera.dev/",
    "there are a dozen; each unknown one is compared with those that exist, to suggest the right name",
)
GANG_SIZE = Limit(
    256,
    "pods",
    "size of a gang, as a pod's annotation states it",
    "the pods are planned in one decision, which takes as long as that of all others",
)
REQUIREMENT = Limit(
    1_024,
    "characters",
    "the value of an annotation with a requirement on a GPU",
    "the longest sensible one is a list of models",
)
PRODUCTS = Limit(
    32,
    "models",
    "models in a pod's tessera.dev/product",
    "each is compared with each model of the cluster",
)
REQUIRED_MEMORY = Limit(
    2**60,
    "bytes",
    "a pod's tessera.dev/gpu-memory",
    "more than any GPU will have, and short enough to write in a message",
)
POD_TEMPLATES = Limit(
    18,
    "templates",
    "pod templates with slices of a Job-like object that Kueue queues",
    "Kueue's Workload has so many pod sets at most; each is reviewed as a pod is",
)
POLICY_ENTRIES = Limit(
    2_000,
    "entries",
    "environment variables, mounts, volumes and capabilities of a pod, which the policy `tessera-device-access` checks",
    "each costs the API server some tens of microseconds; a pod of 100 containers with 20 each fits",
)

"""The limits on input that others choose, as a message names them, or as several modules keep them.

Tenants, nodes and files are hostile or broken at times. Each text, count and number that comes from them is compared
with a limit *before* any work is done with it. A limit has a row, with its reason, if a refusal names it or if more
than one module needs it: the core's are here, a satellite's in its folder, and ``docs/limits.md`` leads to them. Any
other bound, as of Tessera's own memories, is a constant beside the one place that keeps it. Limits of the simulated
cluster are in ``tessera_lab.limits``.
"""

from typing import Self


class Limit(int):
    """A bound with what it bounds, its unit and the reason for its size.

    Attributes:
        unit: what is counted, in the plural: ``"bytes"``, ``"terms"``, ``"ms"``.
        bounds: what is bounded, as a reader of that page says it.
        reason: why it is this large and not larger.
    """

    unit: str
    bounds: str
    reason: str

    def __new__(cls, value: int, unit: str, bounds: str, reason: str) -> Self:
        """Makes the limit; ``value`` is in ``unit``."""
        self = super().__new__(cls, value)
        self.unit, self.bounds, self.reason = unit, bounds, reason
        return self

    def __str__(self) -> str:
        """The bound for a message: ``at most 1,024 characters``."""
        return f"at most {int(self):,} {self.unit}"


# Text in messages

ECHOED = Limit(
    200,
    "characters",
    "text of others that a message repeats",
    "a reader finds the mistake in less; a longer text hides the message around it",
)
LINE_SHOWN = Limit(
    4_000,
    "characters",
    "one line that a command prints",
    "about two screens of a terminal; longer lines of others scroll the answer away",
)
KEY_SHOWN = Limit(
    320,
    "characters",
    "a key of a file in a message",
    "Kubernetes' longest keys, a prefix of 253 and a name of 63 characters, fit",
)
VALUE_SHOWN = Limit(60, "characters", "a value of a file in a message", "the path beside it says where the value is")
FACT_SHOWN = Limit(
    1_000,
    "characters",
    "the verdict and each fact of `tessera why`",
    "a scheduler's message about a large cluster fits; a tenant's text cannot push the answer off the screen",
)
CONDITION_MESSAGE = Limit(
    1_000,
    "characters",
    "message of a condition that Tessera writes on a Node or a pod",
    "each write of the Node carries it; a file with many mistakes lists them all in `tessera config check`",
)

# Files of settings

SETTINGS_TEXT = Limit(
    1_048_576,
    "characters",
    "a file of settings: sharing profiles, MIG layouts, values of NVIDIA's operator",
    "a ConfigMap holds no more; NVIDIA's file with all its layouts has a hundredth of it",
)
SETTINGS_VALUES = Limit(
    20_000,
    "keys and values",
    "a file of settings, all its documents together",
    "NVIDIA's file with all its layouts has 700; reading YAML costs 25 microseconds for each",
)
SETTINGS_REPEATED = Limit(
    1_000_000,
    "characters and values",
    "the values that aliases of a YAML file repeat, all together",
    "Kubernetes' largest object has as many; ten lines of aliases can stand for billions",
)
SETTINGS_MISTAKES = Limit(
    100,
    "mistakes",
    "mistakes of one file that a message lists",
    "nobody corrects more at a time; the others are counted",
)
MIG_LAYOUTS = Limit(
    500,
    "layouts",
    "layouts in one file",
    "NVIDIA's file for all its cards has 60; each is tried on every model that Tessera knows",
)
SHARING_REPLICAS = Limit(
    32_768,
    "replicas",
    "replicas of one device in a sharing profile",
    "a card of 32 GB by the MiB; kubelet takes messages of 4 MiB (gRPC), some 50,000 devices of a resource",
)
QUANTITY = Limit(
    64,
    "characters",
    "a quantity, such as `500m` or `10Gi`",
    "no amount needs more digits; parsing time grows with the square of their number",
)
NAMES_COMPARED = Limit(
    2_000,
    "names",
    "names of a cluster that a mistyped one is compared with",
    "these comparisons take some 25 ms; names beyond are not suggested",
)
INSTALL_OPTIONS = Limit(
    16_384,
    "characters",
    "options of `tessera install` in the ConfigMap of `tessera operator`",
    "all options together have some hundred",
)

# Pods

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
    100, "volumes", "PersistentVolumeClaims of a slice pod", "nodes attach fewer volumes; each is tested for every node"
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
    32, "models", "models in a pod's tessera.dev/product", "each is compared with each model of the cluster"
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

# Nodes

CARD_SLOTS = Limit(
    32,
    "memory slots",
    "memory slots of a card in an Instaslice object",
    "RTX PRO 6000 Blackwell has the most, 12; a forged start of 2,000,000,000 made masks of as many bits",
)
NODE_CARDS = Limit(64, "cards", "cards of a node in its Instaslice object", "four times the largest machine")
NODE_DEVICES = Limit(
    256,
    "devices",
    "whole cards, or shares, of a node that Tessera gives to pods of managed namespaces",
    "16 cards of 16 shares; further ones are left to pods that the scheduler places",
)
NODE_IMAGES = Limit(
    256,
    "images",
    "of a node's status whose nodes pods with these images prefer",
    "kubelet lists 50; further ones count as absent",
)
NAMES = Limit(
    253,
    "characters",
    "names and identifiers in an Instaslice object",
    "a name of Kubernetes has no more; those that Tessera writes are far shorter",
)
OFFERS = Limit(
    128,
    "offers",
    "entries of a node's annotation tessera.dev/offers",
    "a node of 16 cards in every MIG profile needs fewer; each entry of a node is compared for every pod",
)
OFFERS_TEXT = Limit(
    64 * 1024,
    "bytes",
    "a node's annotation tessera.dev/offers",
    "a quarter of what Kubernetes allows for all annotations of an object",
)
RESOURCE_ENTRIES = Limit(
    50_000,
    "entries",
    "devices of one resource that an agent announces",
    "kubelet takes the list in one message of 4 MiB, and an entry has up to 75 bytes",
)
USAGE_PAGE = Limit(
    8 * 2**20,
    "bytes",
    "the page `/usage` of an agent that a command reads",
    "64 cards with 512 slices and as many pods have 1 MiB",
)
USAGE_LEASES = Limit(
    10_000, "leases", "leases on the page `/usage` of an agent", "an agent lists no more by default (`--max-series`)"
)
NODE_INDEXES = Limit(
    1_023, "as an index", "index of a card on the page `/usage` of an agent", "far more than a node has cards"
)
CARD_EVIDENCE = Limit(
    16,
    "errors",
    "errors of a card on the page `/usage` of an agent",
    "a card has at most a few kinds of errors at a time; the rest is counted",
)
CARD_HOLDERS = Limit(
    32,
    "holders",
    "pods and processes that hold a card, on the page `/usage` of an agent",
    "more holders than that are not ended by hand; the rest is counted",
)
CORDON_REASON = Limit(
    256,
    "characters",
    "the reason in an annotation tessera.dev/cordon.*; the rest is cut off",
    "two lines of a terminal; a node's condition repeats it for each cordoned card",
)

# Decisions and caches

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
    1_000, "units of weight", "weight of a Queue", "a share a thousand times that of another is a mistake in the unit"
)
QUEUE_NAMESPACES = Limit(
    1_000,
    "namespaces",
    "namespaces that a Queue lists",
    "more are written as *; the list is read at each change of the object",
)
SPARE_SLICES = Limit(
    64, "slices", "spare slices of a Queue", "each is applied to every decision; more are a node of their own"
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

# Processes

LEASE_DURATION = Limit(
    300,
    "seconds",
    "the time for which a controller waits for the holder of an unchanged Lease, whatever the Lease says",
    "twenty times what Tessera writes; a forged one of 68 years left the cluster without a controller",
)
RECORD_SIZE = Limit(
    256 * 2**20,
    "bytes",
    "records of deciders that `tessera debug` fetches or reads",
    "several times the records of a cluster of 5,000 nodes",
)
INPUT_FILE = Limit(
    64 * 2**20,
    "bytes",
    "a file that a command reads, such as settings or measured times",
    "settings are ConfigMaps of 1 MiB at most; a year of measured times has some megabytes",
)
REVIEW_BODY = Limit(
    3 * 2**20, "bytes", "one AdmissionReview", "the API server takes no larger request, and etcd stores half of it"
)
REVIEW_TIME = Limit(
    1_000,
    "ms of CPU time",
    "the review of one pod",
    "the API server waits 5 s, and other pods wait behind this one; the other limits leave a review 200 ms at most",
)
SCALER_CALLS = Limit(
    1_000,
    "calls",
    "calls and streams of KEDA that are answered at a time",
    "a stream for each ScaledObject of as many services as have signals; a call takes some kB",
)
SCALER_MESSAGE = Limit(
    64 * 2**10, "bytes", "one message of KEDA", "metadata of a trigger are some lines; KEDA sends them with each call"
)

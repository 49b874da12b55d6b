"""Every bound on what others can make Tessera read, keep or compute.

Tenants, nodes and files are hostile or broken at times. Each text, count and number that comes from them is held
against a limit *before* any work is done with it. A limit stands here, with its reason, and nowhere else; the refusal
that a user reads names it, and the table in ``docs/security.md`` lists it. ``tests/docs/test_limits.py`` holds the page
to this module.

A :class:`Limit` is an ``int``, so code compares and slices with it directly.
"""

from collections.abc import Iterator
from typing import Self


class Limit(int):
    """A bound with what it bounds, its unit and the reason for its size.

    Attributes:
        unit: what is counted, in the plural: ``"bytes"``, ``"terms"``, ``"ms"``.
        bounds: what is bounded, as a reader of the security page says it.
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
LOG_LINE = Limit(
    8_000,
    "characters",
    "one line of a process's log",
    "what the API server answers is there in full; a text of others cannot fill the log",
)

NODE_AFFINITY_TERMS = Limit(
    100,
    "terms",
    "terms of a slice pod's required node affinity",
    "one term says what hundreds do, with a list of values; each is judged for every node",
)
NODE_AFFINITY_EXPRESSIONS = Limit(
    500,
    "expressions",
    "expressions in all terms of a slice pod's required node affinity",
    "several for each term; each is judged for every node",
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
    "a node has a few dozen labels; each is judged for every node",
)
TOLERATIONS = Limit(
    200,
    "tolerations",
    "tolerations of a slice pod",
    "clusters have a few kinds of taints; the controller stores them for every pod that waits",
)
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
POD_AFFINITY_TERMS = Limit(
    20,
    "terms",
    "terms of a pod's required affinity, and of its required anti-affinity, to other pods",
    "applications name a handful of neighbours; each is judged against all pods, and again when one of them changes",
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
    "nodes attach fewer volumes; each is judged for every node",
)
REMEMBERED_SELECTIONS = Limit(
    128,
    "answers",
    "different selectors of pods for which the controller keeps a count of matching pods",
    "each is compared with every new set of labels; the longest unused is forgotten, and counted again when needed",
)
OPPOSING_TERMS = Limit(
    1_000,
    "terms",
    "terms of other pods' anti-affinity that one slice pod is compared with",
    "a namespace has a few such terms for each application; terms beyond are left to the scheduler",
)
NEIGHBOUR_STEPS = Limit(
    100_000,
    "steps",
    "comparisons for rules about other pods in one decision, divided among the namespaces that have such rules",
    "some 100 ms; beyond its part a namespace's pods are placed without these rules, and the scheduler applies them",
)
VOLUME_STEPS = Limit(
    20_000,
    "volumes",
    "free volumes that one decision compares with claims",
    "about 100 ms; claims beyond are taken to fit, and the scheduler judges them",
)
REMEMBERED_CONSTRAINTS = Limit(
    4_096,
    "answers",
    "different constraints of pods (selector, affinity, tolerations) whose admitting nodes the controller caches",
    "more kinds of pods than wait at once; the longest unused is forgotten, and judged again when needed",
)


BATCH_PODS = Limit(
    1_000,
    "pods",
    "waiting pods that one step of the controller plans together",
    "pods that are created together are packed together; more of them are planned in further steps",
)
BATCH_RULES = Limit(
    400,
    "rules",
    "rules about other pods and host ports of the pods that one step of the controller plans together",
    "each pod's are counted several times; pods beyond it are planned in further steps, one pod at least in each",
)
DECISION_STEPS = Limit(
    40_000,
    "steps",
    "checks in one step of the controller's planning, a check being one node asked about one pod",
    "about 100 ms; what is left is planned in the next step, after the lease is renewed and events are read",
)
STATE_FILE = Limit(
    4 * 1024 * 1024,
    "bytes",
    "a file in which an agent keeps its state",
    "the largest that an agent writes, with the devices of thousands of pods, has a tenth of it",
)
BAD_FILES = Limit(
    3,
    "files",
    "damaged state files of one name that are preserved as `*.bad`",
    "the first ones and the newest show what happened; copies must not fill a disk that damages every file",
)
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


NESTING = Limit(
    128,
    "levels",
    "an object of the API server that is too deep to decode; what is deeper is left out",
    "no kind of Kubernetes nests half as deep; an object may have 10,000 levels, the decoder takes some 900",
)


CARD_SLOTS = Limit(
    32,
    "memory slots",
    "memory slots of a card in an Instaslice object",
    "RTX PRO 6000 Blackwell has the most, 12; a forged start of 2,000,000,000 made masks of as many bits",
)
CARD_PROFILES = Limit(
    32,
    "profiles",
    "profiles of a card in an Instaslice object",
    "NVML has 18; what a decision costs grows with them",
)
NODE_CARDS = Limit(
    64,
    "cards",
    "cards of a node in its Instaslice object",
    "four times the largest machine",
)
NODE_SLICES = Limit(
    512,
    "slices",
    "slices of a pod, or of others, in an Instaslice object",
    "all slots of as many cards as a node may have",
)
NODE_PROMISES = Limit(
    1024,
    "entries",
    "pods with slices in a node's Instaslice object",
    "twice as many as a node has slots, since those that are given back stand beside new ones",
)
NAMES = Limit(
    253,
    "characters",
    "names and identifiers in an Instaslice object",
    "a name of Kubernetes has no more; those that Tessera writes are far shorter",
)
CARD_MODELS = Limit(
    256,
    "tables",
    "different tables of MIG profiles that the controller caches besides those in use",
    "a hostile node may write a new table each time; real clusters have a few",
)
CARD_STATES = Limit(
    65536,
    "states",
    "states of a card for which the value of the free slots is cached, for one table of profiles",
    "real cards have a few hundred; profile names that pods and records invent must not fill the memory",
)

REVIEW_BODY = Limit(
    3 * 2**20,
    "bytes",
    "one AdmissionReview",
    "the API server takes no larger request, and etcd stores half of it",
)
REVIEW_TIME = Limit(
    1_000,
    "ms of CPU time",
    "the review of one pod",
    "the API server waits 5 s, and other pods wait behind this one; the other limits leave a review 200 ms at most",
)
PORT_CONNECTIONS = Limit(
    400,
    "connections",
    "connections that a port of the webhook holds",
    "an API server has 200 changes in flight; each connection takes up to 256 KiB for TLS",
)
PORT_BYTES = Limit(
    32 * 2**20,
    "bytes",
    "unfinished bodies that a port of the webhook holds, all connections together",
    "ten of the largest reviews at once; a process has 512 MiB",
)
PORT_HEADERS = Limit(
    32,
    "headers",
    "headers of a request to the webhook",
    "the API server sends about ten",
)
PORT_HEADER = Limit(
    2_048,
    "bytes",
    "the request line, or one header, of a request to the webhook",
    "those of the API server are far shorter; a header is stored before its request is judged",
)
PORT_HEADER_TIME = Limit(
    5_000,
    "ms",
    "handshake and headers of the first request of a connection to the webhook",
    "the API server gives up then",
)
PORT_BODY_TIME = Limit(
    5_000,
    "ms",
    "the body of a request to the webhook",
    "the API server gives up then",
)
PORT_IDLE_TIME = Limit(
    120_000,
    "ms",
    "the pause between two requests of a connection to the webhook",
    "longer than API servers pool idle connections (90 s), so that they are the ones to close",
)
AUTHORITIES = Limit(
    16,
    "authorities",
    "certificate authorities in the webhook's CA bundle",
    "two overlap at a rotation; each lost Secret adds one, and the newest stay",
)
STANDSTILL = Limit(
    30_000,
    "ms",
    "time without progress of admission after which `/healthz` fails",
    "no review takes a twentieth of it; kubelet then restarts the process",
)
OWN_ANNOTATIONS = Limit(
    64,
    "annotations",
    "annotations of a pod under tessera.dev/",
    "there are a dozen; each unknown one is compared with those that exist, to suggest the right name",
)
REQUIREMENT = Limit(
    1_024,
    "characters",
    "the value of an annotation that says what a GPU has to be",
    "the longest sensible one is a list of models",
)
PRODUCTS = Limit(
    32,
    "models",
    "models in a pod's tessera.dev/product",
    "each is compared with each model of the cluster",
)
OFFERS = Limit(
    128,
    "offers",
    "entries of a node's annotation tessera.dev/offers",
    "a node of 16 cards in every MIG profile needs fewer; each entry of a node is compared for every pod",
)


def all_limits() -> Iterator[tuple[str, Limit]]:
    """Name and limit of everything in this module, in its order."""
    for name, value in globals().items():
        if isinstance(value, Limit):
            yield name, value

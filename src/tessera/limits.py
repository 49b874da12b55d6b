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
RECORDED_DECISIONS = Limit(
    100_000,
    "decisions",
    "decisions of each decider that a process keeps (`--record`)",
    "minutes of a busy cluster; more would fill the process's memory",
)
RECORD_SIZE = Limit(
    256 * 2**20,
    "bytes",
    "records of deciders that `tessera debug` fetches or reads",
    "several times the records of a cluster of 5,000 nodes",
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

LEASE_DURATION = Limit(
    300,
    "seconds",
    "the time for which a controller waits for the holder of an unchanged Lease, whatever the Lease says",
    "twenty times what Tessera writes; a forged one of 68 years left the cluster without a controller",
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
POD_LABELS = Limit(
    64,
    "labels",
    "labels of a pod that rules about other pods are compared with, the first ones in alphabetical order",
    "pods have a dozen; the API server allows 50,000, and each is an entry of an index",
)
REMEMBERED_SELECTIONS = Limit(
    500_000,
    "entries",
    "what the controller caches for selectors of pods: one for each selector, its nodes and its sets of labels",
    "200 workloads of 50,000 pods take 76,000, of about 100 bytes; the longest unused is found anew when needed",
)
REMEMBERED_OPPOSITION = Limit(
    4_096,
    "answers",
    "different sets of pods' labels for which the controller caches the terms of anti-affinity that select them",
    "more kinds of pods than wait at once; the longest unused is forgotten, and compared again when needed",
)
OPPOSING_TERMS = Limit(
    1_000,
    "terms",
    "terms of other pods' anti-affinity that one slice pod is compared with",
    "a namespace has a few such terms for each application; terms beyond are left to the scheduler",
)
NEIGHBOUR_STEPS = Limit(
    30_000,
    "steps",
    "comparisons for one pod's rules about other pods, each time that they are judged",
    "some 30 ms; a pod of 200 workloads with 50,000 pods takes 1,300; a rule beyond it is left to the scheduler",
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
    1_000,
    "rules",
    "rules about other pods and host ports of the pods that one step of the controller plans together",
    "as many as pods, so that replicas with a rule each are packed together; pods beyond are planned in further steps",
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

# Text that is shown.

EVENT_SHOWN = Limit(
    300,
    "characters",
    "an event's text in `tessera why`",
    "kubectl shows all of it; three events stay on one screen",
)
KEY_SHOWN = Limit(
    320,
    "characters",
    "a key of a file in a message",
    "Kubernetes' longest keys, a prefix of 253 and a name of 63 characters, fit",
)
VALUE_SHOWN = Limit(
    60,
    "characters",
    "a value of a file in a message",
    "the path beside it says where the value is",
)
YAML_FAULT_SHOWN = Limit(
    1_000,
    "characters",
    "what the YAML reader says about a file, in a message",
    "a reader's longest explanation fits; it repeats lines of the file",
)
ANSWER_SHOWN = Limit(
    300,
    "characters",
    "an answer of an API server that is no Status, in a message",
    "the title of a proxy's error page fits",
)
KUBELET_WORDS = Limit(
    300,
    "characters",
    "what kubelet says of a driver pod's container, in a status",
    "kubelet's messages fit; an image's name in them is the tenant's",
)
BUILD_WORDS = Limit(
    600,
    "characters",
    "last words of a build's pod, in a status",
    "the last lines of a failed build fit",
)
COPY_WORDS = Limit(
    500,
    "characters",
    "what skopeo says of a failed copy, in a message",
    "its last line fits",
)

# Pods of all kinds.

POLICY_ENTRIES = Limit(
    2_000,
    "entries",
    "environment variables, mounts, volumes and capabilities of a pod, which the policy `tessera-device-access` judges",
    "each costs the API server some tens of microseconds; a pod of 100 containers with 20 each fits",
)

# Files and numbers that people write.

SETTINGS_REPEATED = Limit(
    1_000_000,
    "characters and values",
    "what aliases of a YAML file stand for, all of them together",
    "Kubernetes' largest object has as many; ten lines of aliases can stand for billions",
)
NAMES_COMPARED = Limit(
    2_000,
    "names",
    "names of a cluster that a mistyped one is compared with",
    "these comparisons take some 25 ms; names beyond are not suggested",
)
QUANTITY = Limit(
    64,
    "characters",
    "a quantity, such as `500m` or `10Gi`",
    "more digits than any amount has; reading takes the square of their number",
)
SHARING_REPLICAS = Limit(
    10_000,
    "replicas",
    "replicas of one device in a sharing profile",
    "more is a slip of the finger; kubelet keeps each in memory",
)
RESOURCE_ENTRIES = Limit(
    50_000,
    "entries",
    "devices of one resource that an agent announces",
    "kubelet takes the list in one message of 4 MiB, and an entry has up to 75 bytes",
)
REPORT_TEXT = Limit(
    16 * 2**20,
    "characters",
    "a file of provisioning records or results",
    "more than 10,000 nodes with a record each",
)
REPORT_RECORD = Limit(
    10_000,
    "values and characters",
    "one record of such a file",
    "a full record has less than a tenth of it",
)
REPORT_BARS = Limit(
    30,
    "bars",
    "bars in a chart of the report; those of the most nodes are drawn",
    "more cannot be told apart",
)
REPORT_TABLES = Limit(
    200,
    "tables",
    "tables in the page of the report; those of the most nodes stay",
    "a page of more is too long to read; `--group` and `--by` choose",
)
SAMPLE_ROWS = Limit(
    100_000,
    "rows",
    "rows of a file of start times for `advise`, and records that are read of a cluster",
    "years of an autoscaler's work; each is sorted",
)
SAMPLE_TIME = Limit(
    7 * 86_400,
    "seconds",
    "a start time in such a file",
    "no node takes a week to start; a larger number was in another unit",
)
WARM_NODES = Limit(
    1_000,
    "nodes",
    "warm nodes that `advise` reckons with",
    "more is a cluster of its own; each number up to the answer is tried",
)

# Planning.

EXPLAINED_SETS = Limit(
    20_000,
    "sets",
    "sets of pods that the search for what would free room tries for one pod",
    "their number grows with every pod that runs; beyond it the reason says that several pods would have to end",
)
EXPLAINED_DIVISIONS = Limit(
    400,
    "divisions",
    "divisions of a pod's slices among cards that this search tries",
    "their number grows with every pod that runs; beyond it the reason says that several pods would have to end",
)
EXPLAINED_STEPS = Limit(
    40_000,
    "steps",
    "steps of this search",
    "the search may not take longer than the decision; beyond it the reason says that several pods would have to end",
)
DIVISION_STEPS = Limit(
    4_000,
    "steps",
    "trials that divide one pod's slices among the cards of a node",
    "about 50 ms; beyond them the node counts as full for this pod",
)
REMEMBERED_LABEL_KEYS = Limit(
    10_000,
    "keys",
    "keys of node labels whose last change the controller remembers",
    "clusters have a few hundred; beyond it all keys are forgotten, and every pod is judged again",
)
REMEMBERED_EVENTS = Limit(
    4_096,
    "events",
    "events that a process remembers to count repeats",
    "client-go remembers as many; the oldest is forgotten, and a repeat of it becomes a new event",
)

# Nodes and agents.

OFFERS_TEXT = Limit(
    64 * 1024,
    "bytes",
    "a node's annotation tessera.dev/offers",
    "a quarter of what Kubernetes allows for all annotations of an object",
)
REQUIRED_MEMORY = Limit(
    2**60,
    "bytes",
    "a pod's tessera.dev/memory",
    "more than any GPU will have, and short enough to write in a message",
)
MARKER_FILE = Limit(
    4_096,
    "characters",
    "a marker file of a driver container; the rest is not read",
    "NVIDIA's have a few lines; the folder belongs to the host",
)
REMEMBERED_SETTINGS = Limit(
    32,
    "files",
    "texts of sharing profiles, and of MIG layouts, that an agent remembers as read",
    "those of a ConfigMap before and after a change; the longest unused is forgotten",
)
KUBELET_MESSAGE = Limit(
    16 * 2**20,
    "bytes",
    "a message between an agent and kubelet",
    "kubelet's own server of pod resources allows as many",
)
OS_IMAGE = Limit(
    200,
    "characters",
    "a node's osImage; the rest is not read",
    "kubelet's are below 100; regular expressions read it",
)

# Driver policies and their state.

POLICY_TEXT = Limit(
    1_024,
    "characters",
    "a text in a ClusterPolicy or NVIDIADriver, but for values of environment variables",
    "names, paths and versions are far shorter; they are written into driver pods",
)
IMAGE_REFERENCE = Limit(
    512,
    "characters",
    "the name of an image, with registry, tag and digest",
    "255 of a name, 128 of a tag and a digest fit",
)
IMAGE_MIRRORS = Limit(
    8,
    "repositories",
    "mirrors that a policy's annotation names",
    "each is asked for every image",
)
POLICY_MESSAGE = Limit(
    4_096,
    "characters",
    "message of a condition of a ClusterPolicy or NVIDIADriver",
    "a line for each of 20 faults; definitions allow 32,768",
)
DRIVER_STATUS = Limit(
    32_768,
    "characters",
    "a node's annotation with the state of its driver",
    "the longest that the controller writes stays below",
)
ROLLOUT_RECORD = Limit(
    4_096,
    "characters",
    "a node's annotation with the record of a driver change",
    "a record with the longest cause has a fourth of it",
)
FAILURE_CAUSE = Limit(
    500,
    "characters",
    "cause of a failed driver change, in a record and in a status",
    "a sentence with a container's last words fits",
)
FAILED_SETS = Limit(
    32,
    "driver sets",
    "driver sets whose failures the controller keeps; the latest stay",
    "clusters roll out one or two at a time; a ConfigMap holds 1 MiB",
)
FAILED_NODES = Limit(
    20,
    "nodes",
    "nodes with their failures that are kept of each set; the latest stay",
    "a roll-out stops at a few failures",
)
FAILURES_TEXT = Limit(
    64 * 1024,
    "characters",
    "failures of one set in their ConfigMap; a longer entry is ignored",
    "twenty nodes with the longest causes have a fifth of it",
)
REMEMBERED_IMAGES = Limit(
    500,
    "images",
    "images that the controller keeps in a ConfigMap for its next start; the newest stay",
    "one has half a kilobyte of JSON, and a ConfigMap holds 1 MiB",
)
DRIVER_MEMORY = Limit(
    512 * 1024,
    "characters",
    "a ConfigMap in which the controller keeps driver images or policies",
    "half of what a ConfigMap holds; a longer one is ignored, and made anew",
)
REMEMBERED_REFERENCES = Limit(
    4_096,
    "references",
    "images for which the controller remembers what the registry said",
    "one for each pool, strategy and mirror; the longest unused is forgotten, and asked for again",
)

# Next kernels.

NEXT_KERNELS = Limit(
    200,
    "kernels",
    "kernels that are expected next, of all systems together; the first count",
    "each is looked for in registries and has a metric",
)
KERNEL_LIST = Limit(
    64 * 1024,
    "characters",
    "one system's list of next kernels; the rest is not read",
    "a line has less than 150 characters, and 200 lines count",
)
COVERAGE_TEXT = Limit(
    4_096,
    "characters",
    "a policy's annotation on the coverage of next kernels",
    "people read it; the metric has each kernel",
)
RELEASE_DOCUMENT = Limit(
    32 * 2**20,
    "bytes",
    "OpenShift's description of a release",
    "a release's list of images has some hundred kilobytes",
)
APT_INDEX = Limit(
    256 * 2**20,
    "bytes",
    "what an index of Ubuntu's packages unpacks to",
    "the largest (noble, universe, amd64) has less than 90 MB",
)

# Registries.

REGISTRY_ANSWER = Limit(
    4 * 2**20,
    "bytes",
    "an answer of a registry",
    "the OCI distribution specification has registries take manifests of 4 MiB",
)
REGISTRY_REDIRECTS = Limit(
    5,
    "redirects",
    "redirects of one request to a registry",
    "a blob's to where it is stored needs one",
)
CHALLENGE = Limit(
    8_192,
    "characters",
    "a registry's header WWW-Authenticate; the rest is not read",
    "real ones have some hundred",
)
TOKEN_ANSWER = Limit(
    256 * 1024,
    "bytes",
    "an answer with a registry's token",
    "tokens have some kilobytes",
)
TOKEN_LIFE = Limit(
    3_600,
    "seconds",
    "time for which a registry's token is used, whatever its server says",
    "a token that was withdrawn is replaced within the hour",
)
REGISTRY_TOKENS = Limit(
    512,
    "tokens",
    "tokens of registries that a process holds",
    "one for each repository and login; the oldest is forgotten, and asked for again",
)
REPOSITORY_TAGS = Limit(
    100_000,
    "tags",
    "tags of one repository",
    "NVIDIA's drivers have several thousand",
)
TAG_PAGES = Limit(
    1_000,
    "pages",
    "pages of a repository's tags",
    "registries give 1,000 tags a page or fewer",
)
IMAGES_LISTED = Limit(
    100,
    "images",
    "images of a repository that `tessera driver images` looks at",
    "each is a request; a repository has thousands of tags for a system",
)
REGISTRY_AUTHORITIES = Limit(
    512 * 1024,
    "bytes",
    "a file of certificate authorities for registries",
    "a system's own bundle has about 220 KiB",
)
PULL_SECRET = Limit(
    2**20,
    "bytes",
    "credentials for registries, from a Secret or a file",
    "a Secret holds no more",
)

# Provisioning records.

PROVISIONING_RECORD = Limit(
    4_096,
    "characters",
    "a node's annotation with the record of its start, and one line of the records in a ConfigMap",
    "a full record has less than 1 KiB",
)
PROVISIONING_BOOK = Limit(
    512 * 1024,
    "bytes",
    "the ConfigMap of such records; the newest stay",
    "half of what a ConfigMap holds, so that there is room for what cannot be read",
)
PROVISIONING_BROKEN = Limit(
    64 * 1024,
    "bytes",
    "lines of that ConfigMap that cannot be read and are preserved; the rest is dropped",
    "enough to see what happened",
)
RECORD_TEXT = Limit(
    512,
    "characters",
    "a name or an image in a record; what a node or a pod says is cut",
    "a whole image reference fits",
)
WAITING_RECORDS = Limit(
    200,
    "records",
    "records of pods that wait to be written",
    "a write takes all that wait; of more, the oldest are dropped",
)
METRIC_COMBINATIONS = Limit(
    64,
    "combinations",
    "combinations of pool, strategy and image in provisioning metrics; others count as `other`",
    "each has a histogram for every phase; the names come from others",
)
METRIC_LABEL = Limit(
    80,
    "characters",
    "a label's value in provisioning metrics; the rest is cut",
    "tells pools and images apart",
)

# The lab.

LAB_NESTING = Limit(
    100,
    "levels",
    "an object that the lab's API server takes",
    "no kind of Kubernetes nests half as deep",
)
LAB_VALUES = Limit(
    3 * 2**20,
    "values",
    "values in an object that the lab's API server takes, aliases of YAML written out",
    "a body has no more bytes; ten lines of aliases can stand for billions",
)
LAB_NODES = Limit(
    1_000,
    "nodes",
    "nodes of a lab",
    "each runs a simulated kubelet",
)
LAB_CARDS = Limit(
    64,
    "cards",
    "cards of a lab's node",
    "four times the largest machine",
)
LAB_QUESTION = Limit(
    65_536,
    "bytes",
    "a request to a lab's control socket",
    "the names of an image's pull secrets fit",
)


def all_limits() -> Iterator[tuple[str, Limit]]:
    """Name and limit of everything in this module, in its order."""
    for name, value in globals().items():
        if isinstance(value, Limit):
            yield name, value

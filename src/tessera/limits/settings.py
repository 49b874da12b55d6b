"""Limits on files that people write: sharing profiles, MIG layouts, values of NVIDIA's operator."""

from tessera.limits import Limit

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

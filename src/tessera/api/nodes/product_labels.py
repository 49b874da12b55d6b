"""Product names in labels: one spelling for whoever writes a label and whoever selects by it."""

import re

#: Most characters of a label's value, and of its name after the prefix (Kubernetes, label syntax).
LONGEST = 63
#: What the names of the labels begin with that say how many cards of a model a node has; the product follows.
COUNT_LABEL = "tessera.dev/count."
_NAME = COUNT_LABEL.partition("/")[2]


def sanitise(text: str) -> str:
    """Text as a label's value: other characters than letters, digits, ``-_.`` go, blanks become one dash.

    As GPU feature discovery does it, so that selectors written for it match.
    """
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def product_label(product: str, *suffixes: str) -> str:
    """A product's name with its suffixes as a label's value; if it is too long, the name loses its end."""
    tail = "".join("-" + sanitise(suffix) for suffix in suffixes)
    name = sanitise(product)
    if len(name) + len(tail) > LONGEST:
        name = name[: LONGEST - len(tail)].rstrip("-_.")
    return name + tail


def count_label(product: str) -> str:
    """The label that says how many cards of a model a node has; nodes without such a card lack it."""
    return COUNT_LABEL + sanitise(product)[: LONGEST - len(_NAME)].rstrip("-_.")

"""Free cards that a node's CPU, or its memory, does not suffice for.

A card that is free beside too little CPU waits for a pod that asks for less CPU than most. So a pod with much CPU goes
where CPU is plentiful, and one without leaves such nodes to others. ``bench/openb.py`` measures the rule on traces.
"""

#: CPU, or memory, that a free card needs to count in full, in multiples of what pods ask for beside one on average.
CPU_A_CARD = 1.3


def stranded(free: float, cpu: float, cpu_a_card: float) -> float:
    """Returns the free cards of a node for which CPU lacks, in the same unit as the free cards.

    Args:
        free: free cards of the node.
        cpu: its free CPU.
        cpu_a_card: the CPU that pods ask for beside one card on average; 0 if they ask for none.
    """
    return max(0.0, free - cpu / (CPU_A_CARD * cpu_a_card)) if cpu_a_card else 0.0

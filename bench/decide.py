"""Measures one step of the controller's decision when tenants make it as expensive as they can.

    python bench/decide.py                         1,000 nodes, some minutes
    python bench/decide.py --nodes 5000 --json decide.json

Every case makes pods wait that are as costly to judge as the API server lets them be, on nodes that are half full, and
then frees one slot again and again. Pods that are bound already are absorbed before the clock runs. *worst* is the
longest single step, ``decide()`` and the writes that follow, in CPU time of this process: for that long nothing else
happens in the controller. *steps* is how many it took until everybody was judged, *all* their time together, *innocent*
the step in which a plain pod that came last got its slice.

*honest* is a large cluster where nobody means harm: 5,000 nodes with 50,000 pods of 200 workloads that have a rule
about other pods each, and 500 more of these pods that come together.

*cards*, *odd-cards*, *card-kinds* and *first-cards* have nodes with eight whole cards instead, some of which pods hold.
Nodes of the first 1,000 differ in free CPU or memory by whole steps of the ratings, and so do the pods of *odd-cards*
and *card-kinds*: pods of a few kinds, 3,000 pods of as many kinds, and 2,000 pods of as many kinds that no node takes
for want of another resource. *first-cards* has 5,000 different nodes, and its namespace is managed after all else.
*rooms* and *kinds* are what nodes and waiting pods were counted as, *MB* what the process grew by.

Pods arrive as the API server's objects, so *read* is what reading one of them costs. Nothing is simulated but the
answers to writes.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the root in place of this folder, as for ``python -m``
    runpy.run_module("bench.decisions", run_name="__main__", alter_sys=True)

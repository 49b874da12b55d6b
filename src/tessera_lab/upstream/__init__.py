"""NVIDIA's gpu-operator as a model: its order of steps with its waits, on the lab's cluster; all simulated.

It is the reference that Tessera's order of steps is compared with. What a step costs whoever makes it is the cost
model's (:mod:`tessera_lab.costs`), the same for both.
"""

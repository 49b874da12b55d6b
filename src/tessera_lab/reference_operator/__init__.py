"""A model of NVIDIA's gpu-operator: its order of steps and its waits, on the lab's cluster. Everything is simulated.

Tessera's order of steps is compared with it. Both use the same cost of each step
(:mod:`tessera_lab.simulation.cost_model`).
"""

"""GPU hardware behind one interface, with a real and a simulated back end.

- :mod:`interface` and :mod:`errors` define the calls, their values and their errors.
- :mod:`real` and :mod:`simulated` are the two back ends.
- :mod:`asynchronous` runs either of them under an event loop.
"""

"""The GPU hardware behind one small interface: the real library and a simulation of it."""

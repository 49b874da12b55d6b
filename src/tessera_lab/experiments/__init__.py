"""The article's two experiments in the lab: the reference operator's order of steps, and Tessera's; all simulated."""

"""MIG geometry: profiles, legal starts, occupancy masks, layout planning. Pure."""

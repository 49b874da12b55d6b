"""GPU-hours: what pods held of the cards over time, kept by the controller, and reports of it."""

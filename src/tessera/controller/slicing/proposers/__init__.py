"""Features that propose for waiting pods: reservations, moves, preemption, and the end of pods that are late."""

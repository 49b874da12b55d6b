"""The simulated cluster: API server, controllers, scheduler and nodes in one event loop."""

"""The load of services, read on the nodes from the pages of their pods."""

"""Checks of the machine and of the network before a run is joined."""

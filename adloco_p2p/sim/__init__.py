"""Simulated swarms: virtual time, bad networks and crashing machines around the state machines of production."""

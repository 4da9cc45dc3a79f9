"""Rooms in the shape of the ports: swarm, journal, planning rule, control, schedules, signals."""

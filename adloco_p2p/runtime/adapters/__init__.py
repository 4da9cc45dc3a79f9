"""Adapters of other packages to the ports: swarm, journal, planning rule, control, schedules, signals."""

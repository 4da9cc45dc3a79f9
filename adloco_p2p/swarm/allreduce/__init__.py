"""Averages among several hosts: the butterfly all-reduce and the repair of a committed average. Start at `averager.py`."""

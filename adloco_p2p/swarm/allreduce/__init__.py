"""One average among several hosts: butterfly all-reduce and the repair of a committed average. Begin at `averager.py`."""

"""Which plan is final, and who is alive: consensus and membership behind one port. Begin at `consensus.py`."""

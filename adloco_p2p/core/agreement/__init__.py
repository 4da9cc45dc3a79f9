"""Agreement on plans and on the living members: consensus and membership behind one port. Begin at `consensus.py`."""

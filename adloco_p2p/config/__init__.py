"""What a run is (`run.py`: equal on every peer, hashed) and what a machine is (`peer.py`: nobody else's business)."""

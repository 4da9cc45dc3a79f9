"""Settings of a run (`run_config.py`: equal on every peer, hashed) and of a machine (`peer_config.py`: private to it)."""

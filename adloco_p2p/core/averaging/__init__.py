"""One instance, one round: attempts at an average, commit votes, retries. Begin at `outer_round.py`."""

"""The chain of final plans: validity of an entry, choice between two chains, and the proofs that a chain gives."""

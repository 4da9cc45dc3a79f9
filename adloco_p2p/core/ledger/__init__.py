"""The chain of final plans: the validity of an entry, the choice between two chains, and the proofs that a chain gives."""

"""The chain of final plans: what makes an entry valid, which of two chains counts, and what the chain proves."""

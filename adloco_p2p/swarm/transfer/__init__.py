"""Bytes by their root hash, from several donors: `chunk_*` and `download` handle chunks only, `state_transfer` cuts tensors."""

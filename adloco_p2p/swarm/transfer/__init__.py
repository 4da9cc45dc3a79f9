"""Bytes by their root hash, from several donors: `chunk_*` and `download` know chunks only, `state_transfer` cuts tensors."""

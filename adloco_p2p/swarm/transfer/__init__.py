"""Blobs by their root, from several donors: `chunk_*` and `download` know chunks only, `*_transfer` states and files."""

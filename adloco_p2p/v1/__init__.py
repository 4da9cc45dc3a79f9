"""Generated protobuf code, see proto/generate.py; never edited."""

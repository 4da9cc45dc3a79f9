"""Decides. Pure: standard library only, `now` and every random draw are arguments, a decision returns a value and a reason."""

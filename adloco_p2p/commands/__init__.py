"""The verbs of the command line, one function each: arguments in, exit code out. Imports are made when a verb needs them,
so that `--help` and mistakes answer at once.
"""

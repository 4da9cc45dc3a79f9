"""What the command line can do, one function per verb: arguments in, exit code out. Imports are made when a verb needs them,
so that `--help` and mistakes answer at once.
"""

"""The verbs of the command line, one function each, from arguments to exit code. A verb imports modules only when it needs
them, so that `--help` and mistakes get an answer at once."""

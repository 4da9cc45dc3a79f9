"""The views of a run: the live view, plain lines, and the report. All of it is derived from the events of one peer."""

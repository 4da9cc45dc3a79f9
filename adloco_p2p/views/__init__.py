"""The views of a run: the live view, plain lines, and the report. All of them follow from the events of one peer."""

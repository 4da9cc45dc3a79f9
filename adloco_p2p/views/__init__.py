"""What the user sees: the live view, plain lines, and the report. All of it is derived from the events of one peer."""

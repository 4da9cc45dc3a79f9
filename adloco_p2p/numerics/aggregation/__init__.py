"""How contributions become one average: rules over the inner products of the contributions, and those products."""

"""The data room: documents become rows of token ids. The only room that imports `datasets`."""

"""Results of other tools, read into records of our own: one module per tool, what is unknown stays unknown."""

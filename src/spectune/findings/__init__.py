"""What spectune can find: one Markdown page for each finding, and the reader of the pages."""

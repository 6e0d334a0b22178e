"""Reading the user's study file: YAML in, a checked ``StudySpec`` or every mistake with its line out."""

"""What ``import spectune`` offers; the command line is built on it too."""

"""Run files, what they build and execute, and the reports that come out."""

"""Provide the run files and the attacks that belong to DP gradient tracking."""

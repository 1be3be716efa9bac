"""Provide the run files of plain DP-SGD."""

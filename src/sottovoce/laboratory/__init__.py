"""Provide what reproduces and attacks the five papers: run files, exhibits, leakage, results. A folder per paper.

Only the command line imports it: nothing that a user trains with depends on it.
"""

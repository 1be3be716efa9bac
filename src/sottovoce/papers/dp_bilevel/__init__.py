"""Provide DP bilevel optimisation with one curator (Kornowski, 2024)."""

"""Provide DP gradient tracking: stochastic optimisation over directed graphs (Chen, Wang and Zhang)."""

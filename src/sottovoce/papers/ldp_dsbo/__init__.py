"""Provide LDP-DSBO: decentralised bilevel optimisation with local privacy (Chen and Wang, ICML 2024)."""

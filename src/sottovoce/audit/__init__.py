"""Attacks, and what they prove: a measured lower bound on epsilon beside the claimed one."""

"""Provide methods from other papers, to compare with."""

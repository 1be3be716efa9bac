"""Provide the methods from other papers that DP gradient tracking is compared with."""

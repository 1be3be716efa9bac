"""Provide the methods from other papers that DP bilevel is compared with."""

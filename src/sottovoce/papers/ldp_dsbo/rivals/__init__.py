"""Provide the methods from other papers that LDP-DSBO is compared with."""

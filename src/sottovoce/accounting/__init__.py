"""Compute what a method spends: read it off the traced step, calibrate it, and charge it to ledgers."""

from sottovoce.accounting.account import account
from sottovoce.accounting.calibrate import calibrate

__all__ = ["account", "calibrate"]

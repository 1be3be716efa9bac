"""What a method spends: read off its traced step, calibrated, and charged to ledgers."""

from sottovoce.accounting.account import account
from sottovoce.accounting.calibrate import calibrate

__all__ = ["account", "calibrate"]

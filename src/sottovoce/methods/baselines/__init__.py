"""Methods from other papers, to compare with."""

"""Provide BAMBI and BAMBI-DP: bilevel optimisation of parties that hold columns of the same rows."""

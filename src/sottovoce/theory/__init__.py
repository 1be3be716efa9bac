"""Compute what the papers prove: conditions, rates, step-size plans and privacy bounds, a few files per paper.

Everything here is a function of numbers, schedules, releases and networks. No method is needed to ask a question:

>>> from sottovoce.theory import bambi
>>> bambi.smoothing(directions=1, q=4, p=4, steps=100)
0.00625

A method's `published`, `proved` and `caveats` call these functions with its own settings.
"""

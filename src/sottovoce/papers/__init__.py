"""Provide the five papers, a folder each: the method, what the paper proves, and the rivals it is compared with.

Theory is functions of numbers, schedules, releases and networks. No method is needed to ask a question:

>>> from sottovoce.papers.bambi import theory
>>> theory.smoothing(directions=1, q=4, p=4, steps=100)
0.00625

A method's `published`, `proved` and `caveats` call these functions with its own settings.
"""

"""Attack methods, and compare what the attacks prove with what is claimed: a lower bound on epsilon.

>>> import sottovoce as sv
>>> method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.2), sampling=sv.Full())
>>> sv.audit(method, sv.Population([10]), steps=3, delta=1e-2, trials=1000).passed
True

``sv.audit`` is the function `audit`. The other parts of the room are modules: ``from sottovoce.audit import exhibits``.
"""

from sottovoce.audit.auditing import audit
from sottovoce.audit.bounds import Finding
from sottovoce.audit.labels import audit_labels

__all__ = ["Finding", "audit", "audit_labels"]

"""Attacks, and what they prove: a measured lower bound on epsilon beside the claimed one."""

from sottovoce.audit.auditing import audit
from sottovoce.audit.bounds import Finding
from sottovoce.audit.labels import audit_labels

__all__ = ["Finding", "audit", "audit_labels"]

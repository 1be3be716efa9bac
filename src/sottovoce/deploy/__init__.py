"""Run across organisations: a federation on NVIDIA FLARE, one process per party, each with its own data and veto.

Example: ``sottovoce deploy poc FILE`` starts a whole federation on this machine. `docs/deploy.md` is the guide.
"""

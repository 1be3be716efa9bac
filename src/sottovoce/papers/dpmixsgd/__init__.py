"""Provide DPMixSGD: private decentralised min-max optimisation (Quan, Wang, Zhai, Fang and Liu)."""

"""Provide the run files and the attacks that belong to DPMixSGD."""

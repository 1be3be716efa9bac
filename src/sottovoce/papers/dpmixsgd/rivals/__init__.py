"""Provide the methods from other papers that DPMixSGD is compared with."""

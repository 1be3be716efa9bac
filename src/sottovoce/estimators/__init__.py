"""Private models with the interface of scikit-learn.

>>> from sottovoce.estimators import PrivateLogisticRegression
>>> PrivateLogisticRegression(epsilon=2.0).get_params()["epsilon"]
2.0
"""

from sottovoce.estimators.logistic import PrivateLogisticRegression

__all__ = ["PrivateLogisticRegression"]

"""Fit private models with the interface of scikit-learn.

>>> from sottovoce.estimators import PrivateLogisticRegression
>>> PrivateLogisticRegression(epsilon=2.0).get_params()["epsilon"]
2.0
"""

from sottovoce.estimators.choosing import trials
from sottovoce.estimators.columns import PrivateColumnsClassifier
from sottovoce.estimators.logistic import PrivateLogisticRegression
from sottovoce.estimators.ridge import PrivateRidge
from sottovoce.estimators.scaler import DeclaredScaler
from sottovoce.estimators.tuned import TunedLogisticRegression

__all__ = [
    "DeclaredScaler",
    "PrivateColumnsClassifier",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "TunedLogisticRegression",
    "trials",
]

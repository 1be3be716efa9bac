# The public names, each once. lazy_loader reads this file at run time, type checkers read it too ("as" exports a name).

from . import data as data
from . import methods as methods
from . import networks as networks
from . import privacy as privacy
from . import problems as problems
from . import schedules as schedules
from .accounting import account as account
from .accounting import calibrate as calibrate
from .audit import audit as audit
from .data.columns import Columns as Columns
from .data.population import Population as Population
from .estimators import DeclaredScaler as DeclaredScaler
from .estimators import PrivateColumnsClassifier as PrivateColumnsClassifier
from .estimators import PrivateLogisticRegression as PrivateLogisticRegression
from .estimators import PrivateRidge as PrivateRidge
from .estimators import TunedLogisticRegression as TunedLogisticRegression
from .privacy import Budget as Budget
from .privacy import FixedSize as FixedSize
from .privacy import Full as Full
from .privacy import Ledger as Ledger
from .privacy import OnePass as OnePass
from .privacy import Poisson as Poisson
from .privacy import PrivacyReport as PrivacyReport
from .privacy import Release as Release
from .privacy import Stream as Stream
from .privacy import WithReplacement as WithReplacement
from .privacy.labels import Labels as Labels
from .privacy.noisy_counts import NoisyCounts as NoisyCounts
from .privacy.table import Table as Table
from .privacy.trust import Sum as Sum
from .problems import Bilevel as Bilevel
from .problems import Minimize as Minimize
from .problems import MinMax as MinMax
from .problems.vertical import Vertical as Vertical
from .runtime.model_file import load as load
from .runtime.model_file import save as save
from .runtime.performance import Performance as Performance
from .runtime.result import Model as Model
from .runtime.result import Result as Result
from .runtime.run import run as run
from .runtime.run import run_many as run_many
from .schedules import Decay as Decay
from .tuning import auto as auto
from .tuning import select as select

__version__: str

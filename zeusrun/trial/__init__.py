"""The values that travel through one submit: Decision, Outcome, Trial. All frozen."""

from zeusrun.trial.curve import (
    MOST_POINTS as MOST_POINTS,
)
from zeusrun.trial.curve import (
    CurvePoint as CurvePoint,
)
from zeusrun.trial.curve import (
    SizeChange as SizeChange,
)
from zeusrun.trial.curve import (
    count_missing as count_missing,
)
from zeusrun.trial.curve import (
    counts_from_zero as counts_from_zero,
)
from zeusrun.trial.curve import (
    epochs_of as epochs_of,
)
from zeusrun.trial.curve import (
    is_baseline as is_baseline,
)
from zeusrun.trial.curve import (
    join_changes as join_changes,
)
from zeusrun.trial.curve import (
    scale_curve as scale_curve,
)
from zeusrun.trial.curve import (
    spread_samples as spread_samples,
)
from zeusrun.trial.curve import (
    thin_curve as thin_curve,
)
from zeusrun.trial.record import Outcome as Outcome
from zeusrun.trial.record import Trial as Trial
from zeusrun.trial.values import (
    Bound as Bound,
)
from zeusrun.trial.values import (
    Decision as Decision,
)
from zeusrun.trial.values import (
    EnergySource as EnergySource,
)
from zeusrun.trial.values import (
    Hardware as Hardware,
)
from zeusrun.trial.values import (
    Interruption as Interruption,
)
from zeusrun.trial.values import (
    PowerPoint as PowerPoint,
)
from zeusrun.trial.values import (
    Stage as Stage,
)
from zeusrun.trial.values import (
    TrialStatus as TrialStatus,
)

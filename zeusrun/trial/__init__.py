"""The values that travel through one submit: Decision, Outcome, Trial. All frozen."""

from zeusrun.trial.record import Outcome as Outcome
from zeusrun.trial.record import Trial as Trial
from zeusrun.trial.values import BY_RANKS as BY_RANKS
from zeusrun.trial.values import MOST_POINTS as MOST_POINTS
from zeusrun.trial.values import Bound as Bound
from zeusrun.trial.values import CurvePoint as CurvePoint
from zeusrun.trial.values import Decision as Decision
from zeusrun.trial.values import EnergySource as EnergySource
from zeusrun.trial.values import Hardware as Hardware
from zeusrun.trial.values import HostShare as HostShare
from zeusrun.trial.values import Interruption as Interruption
from zeusrun.trial.values import PowerPoint as PowerPoint
from zeusrun.trial.values import SizeChange as SizeChange
from zeusrun.trial.values import Stage as Stage
from zeusrun.trial.values import TrialStatus as TrialStatus
from zeusrun.trial.values import count_missing as count_missing
from zeusrun.trial.values import counts_from_zero as counts_from_zero
from zeusrun.trial.values import epochs_of as epochs_of
from zeusrun.trial.values import host_of as host_of
from zeusrun.trial.values import is_baseline as is_baseline
from zeusrun.trial.values import join_changes as join_changes
from zeusrun.trial.values import rank_label as rank_label
from zeusrun.trial.values import scale_curve as scale_curve
from zeusrun.trial.values import spread_samples as spread_samples
from zeusrun.trial.values import thin_curve as thin_curve

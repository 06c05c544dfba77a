"""Whether a metric meets its target: one rule for the launcher, the worker and the policies."""

from __future__ import annotations

import math
import re


def _names(text: str) -> re.Pattern[str]:
    return re.compile(rf"_(?:{'|'.join(text.split())})_")


# Words of metric names, by which way is better. The first lines of each are the classes of
# torchmetrics 1.9 with that ``higher_is_better``, by their usual short names; the others are common
# in papers and training scripts.
_IS_LOWER = _names("""
    err [a-z]*error [a-z]*loss perplexity ppl wer cer mer wil ter mae mse msle rmse nrmse mape smape
    wmape rse crps kl kld js jsd fid kid mifid lpips dists ergas rase hamming hausdorff hinge
    edit_distance log_cosh fall_out ece ace mce total_variation minkowski
    bpc bpd bpb bits_per_dim bits_per_char bits_per_byte nll nelbo elbo bce ce xent cross_entropy
    crossentropy huber chamfer emd epe brier mpjpe cost regret eer far frr fpr fnr hter der rmsle
    mase mdape wape rpe distance distortion deviance divergence negative_log_likelihood miss_rate
""")
_IS_SHARE = _names("""
    acc accuracy top auroc auc auprc ap map f fbeta precision recall specificity sensitivity jaccard
    iou miou dice kappa mcc exact_match em hit_rate mrr ndcg ssim r
    tpr tnr npv ppv pck success_rate win_rate
""")
_IS_HIGHER = _names("""
    score bleu sacrebleu chrf rouge bertscore meteor cider spice psnr snr sdr pesq stoi vmaf vif
    explained_variance pearson spearman cosine_similarity panoptic_quality pq
    likelihood log_likelihood reward rew return
""")
TIMES = 100.0
"""As percent are of a share."""
_FLOAT32_EPSILON = 2.0**-23  # relative spacing of float32 (IEEE 754)


def worst_that_reaches(target: float, mode: str) -> float:
    """Return the worst value of a metric that meets a target.

    A value computed in float32 may be slightly off: ``float32(0.95)`` is 0.949999988. So the
    target is relaxed by the spacing of float32, a ten-millionth of its size.
    """
    tolerance = abs(target) * _FLOAT32_EPSILON
    return target + tolerance if mode == "min" else target - tolerance


def describe_target(target: float, mode: str) -> str:
    """Return what a metric must be, such as ``≥ 0.95``."""
    return f"{'≤' if mode == 'min' else '≥'} {target:g}"


def meets_target(value: float, target: float, mode: str) -> bool:
    """Whether a metric meets its target; a value that is not finite never does."""
    if not math.isfinite(value):
        return False
    edge = worst_that_reaches(target, mode)
    return value <= edge if mode == "min" else value >= edge


def better_value(value: float, best: float | None, mode: str) -> float | None:
    """Return the better of a value and the best so far, ignoring a value that is not finite."""
    if not math.isfinite(value):
        return best
    if best is None:
        return value
    return min(best, value) if mode == "min" else max(best, value)


def is_suspect(value: float, target: float, mode: str) -> bool:
    """Whether a value that meets a target may be in another unit, or a part of a number.

    Whether it counts, only the launcher can tell: ``metrics/advance.py``.
    """
    if mode == "min":
        return 0 <= TIMES * value <= target
    return target > 0 and (TIMES * target <= value or target <= 1 < value)


def likely_mode(metric: str) -> str | None:
    """Return ``min`` or ``max``, as the name of a metric says; ``None`` if it says neither."""
    words = _words(metric)
    if _IS_LOWER.search(words):
        return "min"
    return "max" if _IS_SHARE.search(words) or _IS_HIGHER.search(words) else None


def is_share(metric: str) -> bool:
    """Whether the name of a metric says that it is a share of 1, such as an accuracy."""
    words = _words(metric)
    return _IS_SHARE.search(words) is not None and not _IS_LOWER.search(words)


def _words(metric: str) -> str:
    """Return a name as words between underscores, also with those of ``valLoss`` apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric)
    return re.sub("[^a-z]+", "_", f"_{metric}_{apart}_".lower())

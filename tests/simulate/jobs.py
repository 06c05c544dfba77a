"""Tiny traces made by hand: two batch sizes, two power limits, whole numbers."""

from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob

TRAINING = """\
dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
cifar100,net,1024,sgd,0.1,1,0.3,1
cifar100,net,1024,sgd,0.1,1,0.6,4
cifar100,net,1024,sgd,0.1,2,0.3,2
cifar100,net,1024,sgd,0.1,2,0.6,6
cifar100,net,512,sgd,0.1,1,0.3,1
cifar100,net,512,sgd,0.1,1,0.6,
cifar100,net,256,sgd,0.1,1,0.6,3
other,net,8,sgd,0.1,1,5,2
other,net,8,sgd,0.1,1,3,9
"""
POWER = """\
dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
cifar100,net,1024,sgd,100,20,80
cifar100,net,1024,sgd,200,10,190
cifar100,net,512,sgd,100,30,70
cifar100,net,512,sgd,200,20,150
cifar100,net,512,adam,200,99,99
other,net,8,sgd,200,5,100
"""


def write(folder, training=TRAINING, power=POWER, gpu="toy"):
    if training is not None:
        (folder / "summary_train.csv").write_text(training)
    (folder / f"summary_power_{gpu}.csv").write_text(power)
    return folder


def job(curves=None, rates=None, **changes):
    """A job of batch sizes 8 and 16, one power limit, one metre of everything."""
    curves = curves or {
        8: [LearningCurve(2, ((1, 0.5), (2, 1.0)))],
        16: [LearningCurve(4, ((4, 1.0),))],
    }
    values = {
        "name": "toy",
        "default": 8,
        "mode": "max",
        "target": 1.0,
        "max_epochs": 10,
        "max_power_w": 200.0,
        "rates": rates or {arm: {200.0: Rate(100.0, 100.0)} for arm in curves},
        "eras": [(1, curves)],
    }
    return SimulatedJob(**{**values, **changes})


class Scripted:
    """A policy that runs given decisions, then the last one again, and keeps what it saw."""

    name = "scripted"

    def __init__(self, *decisions, stop_after=None):
        self.decisions, self.stop_after, self.seen = list(decisions), stop_after, []
        self.last_attempts = []

    def choose(self, problem, runs, rng):
        self.seen.append((problem.recurrence, [(run.arm, run.status.value) for run in runs]))
        self.last_attempts.append(problem.last_attempt)
        return self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]

    def next_lever(self, problem, decision, profile):
        known = {point.lever for point in profile}
        new = [limit for limit in reversed(problem.levers) if limit not in known]
        return new[0] if new else problem.levers[0]

    def review(self, problem, decision, running):
        at = (decision.global_batch_size, running.epochs)
        return "hopeless" if at == self.stop_after else None

    def explain(self, problem, runs, rng):
        return []

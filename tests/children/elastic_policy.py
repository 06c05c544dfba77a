"""Policies of the number of ranks, for ``elastic.policy``."""


class Grows:
    """Wants three ranks after 20 steps."""

    def wanted_ranks(self, observation):
        return 3 if observation.step > 20 else None


class Fails:
    """Raises an exception in step 5."""

    def wanted_ranks(self, observation):
        return 1 // (5 - observation.step)


class Ends:
    """Ends the training after 5 steps."""

    def wanted_ranks(self, observation):
        return 0 if observation.step >= 5 else None

"""What every lease must do. A lease inherits the class and says how to make and lose one.

The fixtures: ``lease``, of a trial that nobody runs; ``another``, a function that makes another
lease of the same trial, as another process would; ``launcher``, a function that starts a process
that takes the lease, and returns it once it has.
"""

from __future__ import annotations

from tests.runs import wait_for


class LeaseContract:
    def test_nobody_holds_it_at_first_and_asking_does_not_take_it(self, lease, another):
        assert not lease.is_held()
        assert not another().is_held()
        assert lease.acquire()

    def test_one_holds_it_at_a_time(self, lease, another):
        assert lease.acquire()
        assert another().is_held()
        assert not another().acquire()
        assert not another().acquire_or_gone()

    def test_it_can_be_taken_again_after_its_release(self, lease, another):
        assert lease.acquire()
        lease.release()
        lease.release()
        assert not another().is_held()
        assert another().acquire_or_gone()

    def test_it_is_free_once_the_process_that_held_it_is_killed(self, another, launcher):
        process = launcher()
        assert another().is_held()
        assert not another().acquire_or_gone()
        process.kill()
        process.wait()
        wait_for(lambda: not another().is_held())
        assert another().acquire_or_gone()

"""The search over several runs, within memory, and among ranks."""

from __future__ import annotations

import json
import re
import textwrap

from tests.factories import build_trial
from tests.loader.rank.running import PREAMBLE, TUNE
from tests.worker.rank import Rank, free_port
from zeusrun.jobfile.plugged import Chosen
from zeusrun.loader.section import Loader
from zeusrun.trial.values import WorkersChange

SLOW = "train(DataLoader(Data(120, 0.02), 4, shuffle=True, num_workers={own}), passes={passes})"


def as_trial(found):
    """Return a trial with the workers that a run has recorded."""
    rows = {each.t: each for each in found.events if not each.problem}.values()
    changes = [
        WorkersChange(e.t, e.workers, e.stays, e.step_s, e.wait, e.died, e.settled) for e in rows
    ]
    return build_trial(host="a", speed_variant="tune", workers=tuple(changes))


def tell(*earlier, most=4):
    chosen = Chosen(None, build_trial(host="a"), None, earlier)
    return Loader(workers="tune", max_workers=most).tell(chosen)["loader"]


def test_runs_of_two_passes_find_it_together(run):
    earlier = []
    for begin in (1, 4, 4):
        found = run(SLOW.format(own=1, passes=2), tell(*earlier))
        assert found.passes[0] == begin
        earlier.append(as_trial(found))
    assert earlier[-1].best_workers.settled == "1 of 4"
    settled = run(SLOW.format(own=1, passes=2), tell(*earlier))
    assert settled.passes[0] == 4  # later, a busy machine may make it look again


def test_the_search_goes_on_with_another_limit_and_another_number_of_the_script(run):
    row = WorkersChange(0.0, 2, False, 0.04, 0.9, settled="1 of 2")
    known = build_trial(host="a", speed_variant="tune", workers=(row,))
    assert run(SLOW.format(own=1, passes=2), tell(known, most=2)).passes == [2, 2]
    assert run(SLOW.format(own=1, passes=2), tell(known, most=4)).passes == [4, 4]
    assert run(SLOW.format(own=3, passes=2), tell(known, most=2)).passes[0] == 1


def test_the_most_of_the_job_holds_for_the_number_of_the_script(run):
    found = run(SLOW.format(own=3, passes=3), max_workers=2)
    assert found.passes == [2, 1, 2]


def test_without_free_memory_no_worker_is_added(run):
    script = """
    import zeusrun.loader.rank.limits as limits
    limits._read_memory = lambda: (0.0, 1e12)
    """
    found = run(textwrap.dedent(script) + SLOW.format(own=1, passes=3))
    assert found.passes == [1, 1, 1]
    assert 1 in found.measured


def test_ranks_that_begin_other_numbers_of_passes_do_not_wait_for_each_other(tmp_path):
    path = tmp_path / "script.py"
    script = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    layer = torch.nn.parallel.DistributedDataParallel(layer)
    data = Data(400, 0.002)
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=1)
    if dist.get_rank() == 1: next(iter(loader))
    time.sleep = None
    train(loader, passes=3, before=sampler.set_epoch)
    """
    path.write_text(PREAMBLE.replace("time.sleep(", "sleep(") + textwrap.dedent(script))
    path.write_text("from time import sleep\n" + path.read_text())
    logs = Rank(tmp_path / "run").run_all(path, ZEUSRUN_PARTS=json.dumps({"loader": TUNE}))
    first, second = (re.findall(r"^pass (\d+)", log, re.MULTILINE) for log in logs)
    assert first == second == ["1", "2", "4"]


def test_ranks_that_the_script_has_spawned_share_the_cores(tmp_path):
    path = tmp_path / "script.py"
    script = """
    import torch.distributed as dist, torch.multiprocessing as mp
    class Plain(Dataset):
        def __len__(self): return 160
        def __getitem__(self, n):
            time.sleep(0.004)
            return n
    def main(rank, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", rank=rank, world_size=2)
        import zeusrun.loader.rank.agent as agent
        agent.count_cores = lambda: 4
        layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(layer.parameters(), 0.25)
        loader = DataLoader(
            Plain(), 4, shuffle=True, num_workers=1, multiprocessing_context="fork"
        )
        for epoch in range(4):
            for batch in loader:
                optimizer.zero_grad(); layer(torch.ones(1, 1)).sum().backward(); optimizer.step()
            os.write(1, f"pass {loader.num_workers}\\n".encode())
        dist.destroy_process_group()
        time.sleep(0.5)  # torch may hang if ``layer`` goes before gloo's thread has dropped its work
    if __name__ == "__main__":
        mp.spawn(main, (os.environ["PORT"],), nprocs=2)
    """
    path.write_text(PREAMBLE + textwrap.dedent(script))
    own = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PORT": free_port()}
    part = json.dumps({"loader": {**TUNE, "max_workers": None}})
    code, log = Rank(tmp_path / "run").run(path, ZEUSRUN_PARTS=part, **own)
    assert code == 0, log
    assert {int(n) for n in re.findall(r"pass (\d+)", log)} == {1, 2}

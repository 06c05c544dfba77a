"""Which scripts save a model only after their training loop."""

from __future__ import annotations

from textwrap import dedent

import pytest

from zeusrun.jobfile.guess.script import Script

LATE = {
    "after the loop": """
        for epoch in range(9):
            train(epoch)
        torch.save(model.state_dict(), "model.pt")  # here
    """,
    "in functions of the same file": """
        def fit(model):
            for batch in loader:
                loss(model(batch)).backward()
        def finish(path):
            pickle.dump(model.state_dict(), path)  # here
        def main():
            for _ in range(args.n):
                fit(model)
            finish("model.pkl")
        if __name__ == "__main__":
            main()
    """,
    "by a method, after a method": """
        class Trainer:
            def train(self):
                self.model.train()
                while self.step_number < self.steps:
                    self.optimizer.step()
            def export(self):
                self.model.save_pretrained("out")  # here
        @hydra.main()
        def main(config):
            trainer = Trainer(config)
            trainer.train()
            trainer.export()
        main()
    """,
    "by a function that is spawned": """
        def worker(rank):
            for epoch in trange(9):
                step()
            if rank == 0:
                utils.save_on_master(model, "model.pt")  # here
        mp.spawn(worker, nprocs=2)
    """,
    "within the loop only with an option that is not given": """
        parser.add_argument("--snapshots", "-s", type=str, default=None)
        for epoch in range(9):
            if args.snapshots is not None and epoch % 2 == 0:
                torch.save(model, args.snapshots)
        save_file(model.state_dict(), "model.safetensors")  # here
    """,
    "with an option that is given": """
        parser.add_argument("--save-model", action="store_true")
        for epoch in range(9):
            train()
        if args.save_model:
            torch.save(model, "model.pt")  # here
    """,
    "by a tool that is no library with a hook": """
        import skorch
        def net(output_file):
            model = get_model()
            model.fit(X, y)
            with open(output_file, "wb") as file:
                pickle.dump(model, file)  # here
        fire.Fire({"net": net})
    """,
    "after an epoch, where the evaluation comes between its steps": """
        for epoch in range(9):
            for batch in loader:
                loss(batch).backward()
                if step % every == 0:
                    score = evaluate(model, val_loader)
            torch.save(model.state_dict(), f"{epoch}.pt")  # here
    """,
}
NOT_LATE = {
    "the best within the loop": """
        def save_best(score):
            if score > best:
                torch.save(model, "best.pt")
        for epoch in range(9):
            train(epoch)
            save_best(evaluate())
        torch.save(model, "last.pt")
    """,
    "after the batches of an epoch": """
        def train(epoch):
            for batch in loader:
                loss(batch).backward()
            torch.save(model, f"{epoch}.pt")
        for epoch in range(9):
            train(epoch)
    """,
    "before the loop": """
        torch.save(model, "untrained.pt")
        for epoch in range(9):
            train(epoch)
    """,
    "no loop": "trainer.train()\ntrainer.save_model()",
    "another loop": "for seed in seeds:\n    build(seed)\ntorch.save(data, 'data.pt')",
    "no model": """
        for epoch in range(9):
            train()
        figure.save("curve.png")
        pickle.dump(losses, file)
    """,
    "with an option that is not given": """
        parser.add_argument("--export", action="store_true")
        for epoch in range(9):
            train()
        if args.export:
            torch.save(model, "model.pt")
    """,
    "of Lightning, whose hook lets the script go on": """
        from lightning.pytorch import Trainer
        trainer.fit(model)
        trainer.save_checkpoint("last.ckpt")
    """,
    "after something that is no training": """
        scaler.fit(data)
        torch.save(model, "untrained.pt")
        for epoch in range(9):
            train()
    """,
    "with the evaluation, between the steps": """
        for epoch in range(9):
            for batch in loader:
                optimizer.step()
                evaluate(model)
                torch.save(model, "best.pt")
    """,
    "after the evaluation that follows the steps": """
        for epoch in range(9):
            for batch in loader:
                optimizer.step()
            evaluate(model)
            torch.save(model, "best.pt")
    """,
    "asks zeusrun": """
        for epoch in zeusrun.current().epochs(9):
            train()
        torch.save(model, "model.pt")
    """,
    "no Python": "for epoch in range(9) {\n torch.save(model) }",
}


@pytest.mark.parametrize("text", LATE.values(), ids=LATE)
def test_a_save_after_the_loop_is_found(text):
    text = dedent(text)
    (here,) = [n for n, line in enumerate(text.split("\n"), 1) if line.endswith("# here")]
    assert Script(text, ["--save-model", "--lr", "0.1"]).late_save == here


@pytest.mark.parametrize("text", NOT_LATE.values(), ids=NOT_LATE)
def test_other_scripts_may_be_stopped_at_the_target(text):
    assert Script(dedent(text)).late_save is None

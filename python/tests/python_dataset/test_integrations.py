"""Libraries that train through a forebay loader, for real: with a worker that is killed and a sample that is corrupt.

Each in a process of its own, with a time limit. The program tells its last line as JSON: what the model was shown, and
what the loader says of it.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import children
from missing import missing

COUNT, BATCH, EPOCHS = 48, 4, 2
CORRUPT, DEADLY = 13, 22

COMMON = f"""
import json, os, signal, sys, warnings
import torch
import forebay
from forebay import DataLoader

warnings.filterwarnings("ignore", ".*further ones are counted silently")
folder = sys.argv[1]

class Samples(torch.utils.data.Dataset):
    # One sample is corrupt, another takes its worker down, once, and not before a model is trained: a pass that is
    # dropped before that, as Lightning does, may prefetch it or not.
    def __len__(self):
        return {COUNT}

    def __getitem__(self, index):
        if index == {CORRUPT}:
            raise ValueError("the sample is corrupt")
        if index == {DEADLY} and os.path.exists(os.path.join(folder, "training")):
            try:
                os.close(os.open(os.path.join(folder, "killed"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return {{"x": torch.full((3,), float(index)), "labels": torch.tensor(float(index))}}

def make(**options):
    given = dict(batch_size={BATCH}, shuffle=True, num_workers=2, on_error="replace", seed=1)
    return DataLoader(Samples(), **(given | options))

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 1)
        self.shown = []

    def forward(self, x, labels=None):
        if self.training:
            open(os.path.join(folder, "training"), "a").close()
            self.shown.append(labels.int().tolist())
        return {{"loss": ((self.inner(x / {COUNT}).squeeze(1) - labels / {COUNT}) ** 2).mean()}}

def tell(loader, model, **more):
    failures = [[one.epoch, one.index, one.code, one.outcome, one.substitute] for one in loader.failures]
    told = dict(shown=model.shown, failures=failures, restarts=loader.stats()["workers"]["restarts"])
    told["books"] = [list(book.values())
                     for _, book in sorted(loader._loader.books.epochs.items())]
    told["weights"] = torch.cat([one.flatten() for one in model.parameters()]).tolist()
    # In one piece: ranks share the pipe.
    os.write(1, ("\\nTOLD " + json.dumps(told | more) + "\\n").encode())
"""


def train(program: str, folder: Path, launcher: tuple[str, ...] = (), **environment: str) -> list[dict[str, Any]]:
    """What the program told, for each of its ranks."""
    script = folder / "program.py"
    script.write_text(COMMON + program)
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=children.environment(
            OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="", **environment
        ),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "killed").exists(), "no worker was killed"
    told = [line.partition("TOLD ")[2] for line in done.stdout.splitlines() if "TOLD " in line]
    return [json.loads(line) for line in told]


def check(told: dict[str, Any]) -> None:
    """Every sample was shown once in each epoch, but for the corrupt one, which has a name and a substitute."""
    per_epoch = COUNT // BATCH
    assert len(told["shown"]) == EPOCHS * per_epoch
    assert told["books"] == [[COUNT, COUNT - 1, 1, 0]] * EPOCHS
    assert [failure[:4] for failure in told["failures"]] == [
        [epoch, CORRUPT, "user_code", "replaced"] for epoch in range(EPOCHS)
    ]
    for epoch in range(EPOCHS):
        steps = told["shown"][epoch * per_epoch : (epoch + 1) * per_epoch]
        shown = sorted(index for step in steps for index in step)
        substitute = told["failures"][epoch][4]
        assert shown == sorted([index for index in range(COUNT) if index != CORRUPT] + [substitute])


def needs(*packages: str) -> None:
    """Without importing them: that takes seconds, and a child does it."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            missing(name, "it is not installed")


@pytest.mark.timeout(120)
def test_a_lightning_trainer(tmp_path: Path) -> None:
    needs("lightning")
    program = f"""
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Tiny()

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, _):
        self.model(**batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader, module = make(), Module()
trainer = lightning.Trainer(
    max_epochs={EPOCHS}, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=1,
)
trainer.fit(module, loader, DataLoader(torch.utils.data.Subset(Samples(), range(8)), batch_size=4, num_workers=2))
tell(loader, module.model, steps=trainer.global_step, is_ours=trainer.train_dataloader is loader)
"""
    (told,) = train(program, tmp_path)
    check(told)
    assert told["is_ours"]
    assert (told["steps"], told["restarts"]) == (EPOCHS * COUNT // BATCH, 1)


@pytest.mark.timeout(120)
def test_a_hugging_face_trainer(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    program = f"""
import transformers

class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        return loader

loader, model = make(), Tiny()
arguments = transformers.TrainingArguments(
    output_dir=folder, num_train_epochs={EPOCHS}, per_device_train_batch_size={BATCH}, learning_rate=0.1,
    optim="sgd", lr_scheduler_type="constant", save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    logging_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=loader.dataset)
done = trainer.train()
tell(loader, model, steps=done.global_step)
"""
    (told,) = train(program, tmp_path)
    check(told)
    assert (told["steps"], told["restarts"]) == (EPOCHS * COUNT // BATCH, 1)


@pytest.mark.timeout(120)
def test_a_loop_of_accelerate(tmp_path: Path) -> None:
    needs("accelerate")
    program = f"""
import accelerate

accelerator = accelerate.Accelerator(cpu=True)
loader, model = make(), Tiny()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prepared, trained, optimizer = accelerator.prepare(loader, model, optimizer)
steps = 0
for _ in range({EPOCHS}):
    for batch in prepared:
        with accelerator.accumulate(trained):
            accelerator.backward(trained(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
tell(loader, model, steps=steps, is_ours=prepared is loader)
"""
    (told,) = train(program, tmp_path)
    check(told)
    assert told["is_ours"]
    assert (told["steps"], told["restarts"]) == (EPOCHS * COUNT // BATCH, 1)


@pytest.mark.timeout(120)
def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    program = f"""
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
loader = make(rank=rank, world_size=world)
model = Tiny()
trained = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for epoch in range({EPOCHS}):
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        trained(**batch)["loss"].backward()
        optimizer.step()
        together = torch.tensor([step])
        dist.all_reduce(together)
        assert together.item() == step * world, "the ranks are not at the same step"
tell(loader, model, rank=rank)
loader.close()
dist.destroy_process_group()
"""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.1")
    ranks = sorted(train(program, tmp_path, launcher), key=lambda told: int(told["rank"]))
    assert [told["rank"] for told in ranks] == [0, 1]
    assert ranks[0]["weights"] == ranks[1]["weights"], "the ranks trained on together"
    assert sum(told["restarts"] for told in ranks) == 1
    steps = COUNT // 2 // BATCH
    assert [len(told["shown"]) for told in ranks] == [EPOCHS * steps] * 2
    for told in ranks:
        assert [planned for planned, *_ in told["books"]] == [COUNT // 2] * EPOCHS
        assert all(planned == delivered + replaced for planned, delivered, replaced, _ in told["books"])
    for epoch in range(EPOCHS):
        failures = [failure for told in ranks for failure in told["failures"] if failure[0] == epoch]
        assert [failure[1:4] for failure in failures] == [[CORRUPT, "user_code", "replaced"]]
        shown = sorted(i for told in ranks for step in told["shown"][epoch * steps : (epoch + 1) * steps] for i in step)
        planned = [index for index in range(COUNT) if index != CORRUPT] + [failures[0][4]]
        assert shown == sorted(planned)

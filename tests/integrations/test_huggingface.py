"""MOON and sparse topologies in a `transformers.Trainer`."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
from transformers import (  # noqa: E402
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from moon import AutoWeight, CrossEntropy, Moon, Vos, open_head  # noqa: E402
from moon.integrations.huggingface import MoonTrainer, SparseCallback  # noqa: E402

CLASSES, IMAGES = 3, 24


def vit(seed=0):
    torch.manual_seed(seed)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    size = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": CLASSES}
    dropout = {"hidden_dropout_prob": 0.1}  # so that resuming needs the random state
    return ViTForImageClassification(ViTConfig(**small, **size, **dropout))


def resnet():
    torch.manual_seed(0)
    layers = {"embedding_size": 4, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=CLASSES, **layers))


def bert():
    torch.manual_seed(0)
    small = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 8}
    return DistilBertForSequenceClassification(DistilBertConfig(vocab_size=30, num_labels=CLASSES, **small))


def images(count=IMAGES):
    x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(count) % CLASSES
    x[torch.arange(count), 0, y, y] += 4
    return [{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)]


def texts(count=IMAGES):
    ids = torch.randint(1, 30, (count, 8), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    y = torch.arange(count) % CLASSES
    return [{"input_ids": a, "attention_mask": b, "labels": c} for a, b, c in zip(ids, mask, y, strict=True)]


def arguments(folder, **changes):
    usual = {
        "output_dir": str(folder), "num_train_epochs": 4, "per_device_train_batch_size": 6, "learning_rate": 1e-2,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "epoch",
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(**usual | changes)


def callback(topology="rigl", **changes):
    return SparseCallback(topology, 0.5, **{"delta_t": 2, "vote_share": 0.5, "t_end_share": 0.5} | changes)


def trainer(folder, model=None, data=None, callbacks=None, extra=(), **changes):
    names = ("objective", "objective_options")
    settings = {name: changes.pop(name) for name in names if name in changes}
    settings = settings or {"objective": "moon", "objective_options": {"quiet_epochs": 1}}
    return MoonTrainer(
        open_head(vit()) if model is None else model,
        arguments(folder, **changes),
        train_dataset=images() if data is None else data,
        eval_dataset=images() if data is None else data,
        callbacks=[*([callback()] if callbacks is None else callbacks), *extra],
        **settings,
    )


class Watch(TrainerCallback):
    """Calls a function after each step."""

    def __init__(self, function):
        self.function = function

    def on_step_end(self, args, state, control, **parts):
        self.function(state, parts)


class Stop(TrainerCallback):
    """Stops the training after a step, as an interruption does."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


def same(model, other):
    a, b = model.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("topology", ["rigl", "set", "static", "gmp"])
def test_nothing_outside_the_masks_changes(topology, tmp_path):
    densities, masks = [], []

    def check(state, parts):
        sparse = running.sparse.topology
        inner = parts["optimizer"].optimizer
        for name, mask in sparse.masks.items():
            weight = sparse.weights[name]
            assert not weight[~mask].any()
            for value in inner.state[weight].values():
                if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                    assert not value[~mask].any()
        densities.append(sparse.density())
        masks.append({name: mask.clone() for name, mask in sparse.masks.items()})

    running = trainer(tmp_path, callbacks=[callback(topology, vote_share=0)], extra=[Watch(check)])
    running.train()
    assert len(densities) == 16
    assert densities[-1] == pytest.approx(0.5, abs=0.01)
    changed = any(not torch.equal(masks[0][name], masks[-1][name]) for name in masks[0])
    assert changed == (topology != "static")
    assert all(torch.equal(masks[8][name], masks[-1][name]) for name in masks[0])  # t_end_share is a half


@pytest.mark.parametrize(("make", "data"), [(vit, images), (bert, texts), (resnet, images)])
def test_the_loss_falls_and_the_trainer_evaluates(make, data, tmp_path):
    running = trainer(tmp_path, open_head(make()), data(), num_train_epochs=10)
    before = running.evaluate()["eval_loss"]
    result = running.train()
    assert result.training_loss > 0
    assert running.evaluate()["eval_loss"] < before
    assert running.predict(data()).predictions.shape == (IMAGES, CLASSES + 1)
    (first, *_, last) = [entry for entry in running.state.log_history if "loss" in entry]
    assert first["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert (first["w"], last["w"]) == (0.0, 1.0)


def test_the_model_is_the_average_of_the_last_epochs_with_new_batch_norm_statistics(tmp_path):
    seen = []

    def note(state, parts):
        if state.global_step % 4 == 0 and state.epoch > 2:
            seen.append(copy.deepcopy(parts["model"].state_dict()))

    running = trainer(tmp_path, open_head(resnet()), extra=[Watch(note)])
    running.train()
    assert running.sparse.training.vote.voters == len(seen) == 2
    averaged = running.model.state_dict()
    for name in ("classifier.1.weight", "resnet.embedder.embedder.convolution.weight"):
        torch.testing.assert_close(averaged[name], (seen[0][name] + seen[1][name]) / 2)
    assert not averaged["resnet.embedder.embedder.convolution.weight"][
        ~running.sparse.topology.masks["resnet.embedder.embedder.convolution.weight"]
    ].any()
    key = "resnet.embedder.embedder.normalization.running_mean"
    x = torch.stack([each["pixel_values"] for each in images()])
    convolved = running.model.resnet.embedder.embedder.convolution(x)
    torch.testing.assert_close(averaged[key], convolved.mean((0, 2, 3)))
    assert not torch.equal(averaged[key], seen[1][key])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # bf16 on some CPUs
@pytest.mark.parametrize(
    ("make", "stop", "changes"),
    [
        (vit, 6, {}),  # in the middle of an epoch, while the masks change
        (vit, 13, {"gradient_accumulation_steps": 1, "bf16": True}),  # after the first vote
        (resnet, 12, {}),  # at the end of an epoch, with a vote
        (vit, 5, {"gradient_accumulation_steps": 2, "num_train_epochs": 8, "max_grad_norm": 0.1}),
    ],
)
def test_a_resumed_run_ends_with_the_same_weights(make, stop, changes, tmp_path):
    def run(folder, **more):
        options = {"save_strategy": "steps", "save_steps": stop} | changes
        return trainer(tmp_path / folder, open_head(make()), **more, **options)

    whole = run("whole")
    whole.train()
    run("parts", extra=[Stop(stop)]).train()
    resumed = run("parts")
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{stop}"))
    assert resumed.state.global_step == whole.state.global_step
    assert same(resumed.model, whole.model)
    assert resumed.sparse.training.vote.voters == whole.sparse.training.vote.voters > 1
    masks = resumed.sparse.topology.masks
    assert all(torch.equal(mask, whole.sparse.topology.masks[name]) for name, mask in masks.items())
    assert resumed.objective.weight.beta == whole.objective.weight.beta


def test_a_checkpoint_without_masks_is_refused(tmp_path):
    options = {"save_strategy": "epoch", "num_train_epochs": 2}
    trainer(tmp_path, extra=[Stop(4)], **options).train()
    (tmp_path / "checkpoint-4" / "moon.pt").unlink()
    with pytest.raises(ValueError, match=r"moon\.pt: no such file, so the masks of this checkpoint are not known"):
        trainer(tmp_path, **options).train(resume_from_checkpoint=True)


def test_a_trainer_resumes_from_the_folder_that_it_is_given(tmp_path):
    """Another run has left a checkpoint of the same name in the output folder."""
    options = {"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 2}
    whole = trainer(tmp_path / "one", **options)
    whole.train()
    trainer(tmp_path / "two", open_head(vit(1)), **options).train()
    folder = str(tmp_path / "one" / "checkpoint-6")
    resumed = trainer(tmp_path / "two", **options)
    resumed.train(resume_from_checkpoint=folder)
    assert same(resumed.model, whole.model)


@pytest.mark.parametrize("make", [vit, bert])
def test_masks_of_other_weights_are_refused(make, tmp_path):
    """A plain trainer does not tell its callbacks where it resumes, unless its arguments say so."""
    options = {"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 2}
    data = images() if make is vit else texts()

    def run(output, **more):
        seed = {"one": 1, "other": 2}[output]  # of the order of the batches
        settings = arguments(tmp_path / output, seed=seed, **options, **more)
        return Trainer(make(), settings, train_dataset=data, callbacks=[callback()])

    run("one").train()
    run("other").train()
    folder = str(tmp_path / "one" / "checkpoint-6")
    resumed = run("other")
    with pytest.raises(ValueError, match="its masks were saved with other weights than the trainer has loaded"):
        resumed.train(resume_from_checkpoint=folder)
    run("other", resume_from_checkpoint=folder).train(resume_from_checkpoint=folder)


def test_accumulated_batches_have_the_gradient_of_one_large_batch(tmp_path):
    """Also in the last step of an epoch, which has fewer batches."""

    def trained(**sizes):
        model = vit()
        model.eval().train = lambda mode=True: model  # without dropout
        model.training = True
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        running = MoonTrainer(
            model,
            arguments(tmp_path, num_train_epochs=2, lr_scheduler_type="constant", **sizes),
            train_dataset=images(20),
            objective=CrossEntropy(),
            optimizers=(optimizer, None),
        )
        running.train()
        return running.model.state_dict()

    large = trained(per_device_train_batch_size=8)
    small = trained(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    for name, value in large.items():
        torch.testing.assert_close(small[name], value, rtol=1e-4, atol=1e-6)


def test_a_plain_trainer_takes_the_callback(tmp_path):
    sparse = callback(vote_share=0.5)
    running = Trainer(vit(), arguments(tmp_path), train_dataset=images(), callbacks=[sparse])
    running.train()
    assert sparse.topology.steps == 16
    assert sparse.training.vote.voters == 2
    assert sparse.topology.density() == pytest.approx(0.5, abs=0.01)


def test_parameters_of_the_objective_are_trained(tmp_path):
    vos = Vos(epochs=4, num_known=CLASSES, num_features=16, queue=6, draws=20)
    before = copy.deepcopy(vos.state_dict())
    running = trainer(tmp_path, vit(), objective=vos)
    running.train()
    assert any(not torch.equal(parameter, before[name]) for name, parameter in vos.named_parameters())


def test_the_state_of_the_objective_does_not_change_in_an_evaluation(tmp_path):
    before, after = {}, {}

    def note(state, parts):
        before[state.global_step] = running.objective.weight.beta.clone()

    class Evaluated(TrainerCallback):
        def on_evaluate(self, args, state, control, **_):
            after[state.global_step] = running.objective.weight.beta.clone()

    extra = [Watch(note), Evaluated()]
    running = trainer(tmp_path, eval_strategy="steps", eval_steps=1, num_train_epochs=3, extra=extra)
    running.train()
    assert after == before
    assert len({float(beta) for beta in before.values()}) == 4  # it changes in the steps of the first epoch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor have no effect: leave them out"),
        ({"objective": Moon(AutoWeight(epochs=10))}, r"AutoWeight\(epochs=10\), but the training has 4"),
        ({"callbacks": [callback(t_end_share=1.0)]}, "the first vote is cast after 3 epochs of 4 steps, but the masks"),
        ({"objective": "mon"}, "unknown objective 'mon' .did you mean 'moon'"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
            "the vote averages the last epochs, but load_best_model_at_end takes one",
        ),
        ({"model": vit()}, "Moon needs K.1 outputs, but ViTForImageClassification has no unknown output"),
        (
            {"data": [{"pixel_values": torch.zeros(1, 8, 8)}] * 24},
            r"a batch has no 'labels', only \['pixel_values'\]; Moon needs them",
        ),
    ],
)
def test_contradictions_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, **changes).train()


def test_a_callback_serves_one_training(tmp_path):
    running = trainer(tmp_path, num_train_epochs=2)
    running.train()
    with pytest.raises(ValueError, match="this callback was already used for a training; resume it"):
        running.train()


def test_max_steps_and_data_without_a_length(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from images() * 10

    running = trainer(tmp_path, max_steps=10, objective=Moon(AutoWeight(epochs=3, quiet_epochs=1)))
    running.train()
    assert running.state.global_step == 10
    assert running.sparse.training.vote.voters == 2  # of three epochs, the last of which is short
    stream = trainer(
        tmp_path, data=Stream(), max_steps=10, objective=CrossEntropy(), model=vit(), callbacks=[callback(vote_share=0)]
    )
    stream.train()
    assert stream.sparse.topology.steps == 10


@pytest.mark.slow
def test_several_processes_train_one_network(tmp_path):
    script = Path(__file__).parent / "huggingface_processes.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert (first["processes"], first["steps"]) == (2, 16)
    for part in ("weights", "masks"):
        assert all(torch.equal(value, second[part][name]) for name, value in first[part].items())
    assert torch.equal(first["beta"], second["beta"])
    assert all(not first["weights"][name][~mask].any() for name, mask in first["masks"].items())

"""Runs in their folders. The most important property: a killed and resumed run ends like an uninterrupted one."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from moon.data import DataError
from moon.recipe import build, make_recipe
from moon.run.folder import load, load_result, trained_on
from moon.run.images import BenchmarkImages
from moon.run.log import read_log
from moon.run.train import train_run
from moon.run.watch import WATCHED, watcher
from moon.sparse import sparse_weights
from moon.training import DamagedCheckpoint


def recipe(images, objective="moon", **settings):
    settings = {"epochs": 4, "batch_size": 64, "delta_t_steps": 3, "vote_share": 0.25, "t_end_share": 0.6} | settings
    options = {"quiet_epochs": 1} if objective == "moon" else {}
    return make_recipe(images.benchmark, objective, options=options, **settings)


@pytest.fixture
def at_chance(images, monkeypatch):
    """The images, with 90 for validation, of which a network always has 10% right."""
    monkeypatch.setattr("moon.run.train.watcher", lambda *_: lambda _: {"val_accuracy": 0.1})
    return replace(images, splits=images.splits | {"val": images.splits["test"]})


@pytest.mark.parametrize(("epochs", "count"), [(6, 1), (5, 0)])
def test_a_network_that_does_not_begin_to_learn_is_reported_early(epochs, count, at_chance, tmp_path, caplog):
    train_run(recipe(at_chance, "cross-entropy", epochs=epochs, topology="static"), tmp_path, at_chance)
    assert sum("after 5 of 6 epochs the network has learned nothing yet" in text for text in caplog.messages) == count


def test_a_run_that_is_rejected_leaves_nothing(images, tmp_path):
    never = recipe(images, delta_t_steps=1000)
    with pytest.raises(ValueError, match="would never change its masks"):
        train_run(never, tmp_path / "runs" / "run", images)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="would never change its masks"):
        train_run(never, tmp_path / "runs" / "run", images)
    assert (tmp_path / "runs" / "run" / "notes.txt").read_text() == "mine"


def test_the_folder_has_all_files_of_a_run(images, tmp_path):
    result = train_run(recipe(images), tmp_path, images)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "recipe.json", "log.jsonl", "checkpoints", "model.safetensors", "result.json",
    }  # fmt: skip
    assert len({path.stat().st_mode for path in tmp_path.iterdir() if path.is_file()}) == 1  # the same permissions
    assert result == load_result(tmp_path)
    assert result["density"] == pytest.approx(0.05, abs=0.001)
    assert result["voters"] == 1
    assert result["turnover"] > 0
    assert set(result["known"]) == {"accuracy", "ece", "ece_10_bins", "nll", "brier"}
    assert result["images"] == {"train": 256, "test": 90, "val": 10}
    model = load(tmp_path)
    zeros = sum(int((w == 0).sum()) for w in sparse_weights(model).values())
    assert zeros / sum(w.numel() for w in sparse_weights(model).values()) >= 0.949
    log = read_log(tmp_path)
    assert [line["epoch"] for line in log] == [0, 1, 2, 3]
    expected = {"loss", "lr", "density", "turnover", "w", "val_accuracy", "p_unknown_correct", "p_unknown_wrong"}
    assert expected | {"p_unknown_unknown", "seconds"} <= log[-1].keys()


class Stopped(Exception):
    pass


def stopped(recipe, folder, images, epoch=2, **settings):
    """Train a run and stop it at the end of an epoch, before its checkpoint is written."""

    def stop(record):
        if record["epoch"] == epoch:
            raise Stopped

    with pytest.raises(Stopped):
        train_run(recipe, folder, images, on_epoch=stop, checkpoint_seconds=0, **settings)


@pytest.fixture(scope="module")
def _runs(_data, tmp_path_factory):
    folder, images = tmp_path_factory.mktemp("runs"), BenchmarkImages.open(_data, "mnist")
    train_run(recipe(images), folder / "finished", images)
    stopped(recipe(images), folder / "interrupted", images)
    return folder


@pytest.fixture
def finished(_runs, tmp_path):
    """The folder of a finished run of `recipe(images)`."""
    return shutil.copytree(_runs / "finished", tmp_path / "finished")


@pytest.fixture
def interrupted(_runs, tmp_path):
    """The folder of a run of `recipe(images)` that was stopped as `stopped` does."""
    return shutil.copytree(_runs / "interrupted", tmp_path / "interrupted")


def test_a_run_resumes_with_the_threads_it_was_started_with(images, tmp_path, torch_threads):
    chosen = recipe(images, delta_t_steps=1)
    torch_threads(1)
    whole = train_run(chosen, tmp_path / "whole", images)
    assert (whole["threads"], whole["ranks"], whole["exact"]) == (1, 1, True)
    stopped(chosen, tmp_path / "resumed", images)
    torch_threads(2)
    resumed = train_run(chosen, tmp_path / "resumed", images)
    assert torch.get_num_threads() == 2  # that of the host process
    assert (resumed["threads"], resumed["exact"]) == (1, True)
    assert resumed["model_sha256"] == whole["model_sha256"]


def test_an_inexact_result_says_why(images, tmp_path, torch_threads):
    torch_threads(1)
    stopped(recipe(images), tmp_path, images, epoch=1)
    torch_threads(2)
    stopped(recipe(images), tmp_path, images, exact=False)
    result = train_run(recipe(images), tmp_path, images)  # its last part is exact
    assert not result["exact"]
    assert result["inexact"] == ["trained with exact=False", "resumed: threads was 1, now 2"]
    assert result["threads"] == 2


def test_checkpoints_of_another_run_are_rejected(images, interrupted, tmp_path):
    own, other = recipe(images, seed=0), recipe(images, seed=1)
    stopped(other, tmp_path / "other", images)
    shutil.rmtree(interrupted / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", interrupted / "checkpoints")
    with pytest.raises(DamagedCheckpoint, match=f"000002: belongs to the run {other.name}, not to {own.name}"):
        train_run(own, interrupted, images)


def test_checkpoints_on_other_data_are_rejected(images, interrupted):
    (interrupted / "data.json").unlink()
    other = replace(images, splits=images.splits | {"train": images.splits["train"].take(np.arange(200))})
    with pytest.raises(DamagedCheckpoint, match=r"000002: belongs to a run on other data than data\.json says"):
        train_run(recipe(images), interrupted, other)


def test_a_finished_run_without_its_data_json_is_rejected_and_trained_again_writes_it(images, finished):
    expected = load_result(finished)
    before = (finished / "data.json").read_bytes()
    (finished / "data.json").unlink()
    for read in (load, load_result):
        with pytest.raises(DamagedCheckpoint, match=r"data\.json: is missing; restore it, or give the command"):
            read(finished)
    assert train_run(recipe(images), finished, images) == expected
    assert (finished / "data.json").read_bytes() == before


def test_the_result_of_another_run_is_rejected(images, finished, tmp_path):
    own, other = recipe(images, seed=0), recipe(images, seed=1)
    train_run(other, tmp_path / "other", images)
    for name in ("model.safetensors", "result.json"):
        shutil.copy(tmp_path / "other" / name, finished / name)
    for read in (load, load_result, lambda folder: train_run(own, folder, images)):
        with pytest.raises(DamagedCheckpoint, match=f"result.json: belongs to the run {other.name}, not to {own.name}"):
            read(finished)


def test_unknown_images_are_monitored_together(images):
    model = build.network(recipe(images), images.benchmark, "cpu")
    found = watcher(images, torch.device("cpu"), torch.float32)(model)
    each = []
    for data in images.unknown.values():
        step = max(1, len(data.labels) // WATCHED)
        each.append(images.evidence(model, data.take(np.arange(0, len(data.labels), step)[:WATCHED])).unknown)
    assert len(each) > 1
    assert found["p_unknown_unknown"] == pytest.approx(float(torch.cat(each).mean()))


def test_a_plain_run_has_no_unknown_output(images, tmp_path):
    result = train_run(recipe(images, "cross-entropy", vote_share=0.0), tmp_path, images)
    assert result["voters"] == 0
    assert not any(key.startswith(("p_unknown", "w")) for key in read_log(tmp_path)[0])


def test_a_finished_run_is_not_trained_again(images, finished):
    first = load_result(finished)
    stamp = (finished / "model.safetensors").stat().st_mtime_ns
    assert train_run(recipe(images), finished, images) == first
    assert (finished / "model.safetensors").stat().st_mtime_ns == stamp


def test_another_recipe_is_rejected(images, finished):
    with pytest.raises(ValueError, match=r"another recipe \(seed was 0, now 1\); choose another folder"):
        train_run(recipe(images, seed=1), finished, images)
    with pytest.raises(ValueError, match=r"\(epochs was 4, now 9\); .* cannot be extended; choose another folder"):
        train_run(recipe(images, epochs=9), finished, images)


def test_a_run_is_loaded_without_its_data(images, finished):
    model = load(finished)  # no data root is given; the folder says how many classes there are
    assert model.fc.num_known == 10
    assert not model.training
    assert trained_on(finished) == replace(images.benchmark, near=(), far=(), net="lenet")


def test_other_data_are_rejected(images, data_root, finished):
    (finished / "result.json").unlink()
    path = data_root / "mnist" / "train.npz"
    with np.load(path) as file:
        np.savez(path, images=file["images"], labels=(file["labels"] + 1) % 10)
    with pytest.raises(DataError, match="other images or labels"):
        train_run(recipe(images), finished, BenchmarkImages.open(data_root, "mnist"))


@pytest.mark.parametrize("name", ["result.json", "data.json", "recipe.json"])
def test_the_error_names_the_damaged_file(images, finished, name):
    (finished / name).write_text("{")
    with pytest.raises(DamagedCheckpoint, match=name):
        train_run(recipe(images), finished, images)


def test_a_changed_model_is_rejected(finished):
    content = bytearray((finished / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (finished / "model.safetensors").write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match="is not the model this run wrote"):
        load(finished)


def test_resuming_truncates_the_log_to_the_checkpoint(images, finished, interrupted, caplog):
    with (interrupted / "log.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')  # truncated by a kill
    with caplog.at_level("INFO", "moon.run"):
        train_run(recipe(images), interrupted, images)
    assert "resuming from epoch 2 of 4" in caplog.messages
    assert same_log(finished, interrupted)
    assert not any("are lost" in message for message in caplog.messages)


def test_epochs_that_no_checkpoint_contains_are_trained_again_and_said_so(images, finished, interrupted, caplog):
    shutil.rmtree(interrupted / "checkpoints")
    with caplog.at_level("INFO", "moon.run"):
        train_run(recipe(images), interrupted, images)
    assert "trained again, because no checkpoint contains them: the last 3 epoch(s) of the log" in caplog.messages
    assert same_log(finished, interrupted)


def test_what_a_killed_process_left_is_removed_even_if_the_run_is_finished(images, finished):
    leftovers = [folder / ".moon-00000000.part" for folder in (finished, finished / "checkpoints")]
    for leftover in leftovers:
        leftover.mkdir()
    train_run(recipe(images), finished, images)
    assert not any(leftover.exists() for leftover in leftovers)


def test_a_log_that_lost_its_epochs_is_reported_when_the_run_resumes(images, interrupted, caplog):
    (interrupted / "log.jsonl").write_text("")
    train_run(recipe(images), interrupted, images)
    (message,) = [message for message in caplog.messages if "are lost" in message]
    assert message.startswith(f"{interrupted / 'log.jsonl'}: has 0 of the ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: lines[:1] + lines[2:], "line 2 is damaged or belongs to another run"),
        (lambda lines: [lines[0].replace('"epoch": 0', '"epoch": 9'), *lines[1:]], "its digest does not match"),
        (lambda lines: [lines[0][:20], *lines[1:]], "line 1 is damaged"),
        (lambda lines: ["{}"], "it is not the record of an epoch"),
        (lambda lines: ['{"epoch": 0, "seconds": 1, "loss": NaN}', "{}"], "NaN is not a finite number"),
    ],
    ids=["removed", "changed", "cut", "empty", "nan"],
)
def test_a_damaged_log_is_an_error(images, interrupted, change, problem):
    lines = (interrupted / "log.jsonl").read_text().splitlines()
    (interrupted / "log.jsonl").write_text("\n".join(change(lines)) + "\n")
    for read in (read_log, lambda folder: train_run(recipe(images), folder, images)):
        with pytest.raises(DamagedCheckpoint, match=problem):
            read(interrupted)


def test_the_log_of_another_run_is_an_error(images, interrupted, tmp_path):
    stopped(recipe(images, seed=1), tmp_path / "other", images)
    shutil.copy(tmp_path / "other" / "log.jsonl", interrupted / "log.jsonl")
    with pytest.raises(DamagedCheckpoint, match="line 1 is damaged or belongs to another run"):
        read_log(interrupted)


def same_log(a, b):
    lines = [
        [{k: v for k, v in line.items() if k not in ("seconds", "elapsed_seconds")} for line in read_log(folder)]
        for folder in (a, b)
    ]
    assert lines[0] == lines[1]
    return True


def test_results_do_not_depend_on_the_random_state_before_the_run(images, tmp_path):
    torch.manual_seed(1)
    train_run(recipe(images), tmp_path / "a", images)
    torch.manual_seed(2)
    train_run(recipe(images), tmp_path / "b", images)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("objective", "topology", "options"),
    [
        ("vos", "rigl", {"start_share": 0.2, "queue": 64}),
        ("eow-softmax", "rigl", {"start_share": 0.2, "steps": 2, "replay": 64}),
        ("hod", "set", {}),
        ("dac", "rigl", {"quiet_epochs": 1}),
        ("moon-logitnorm", "granet", {"quiet_epochs": 1}),
        ("mixup", "snfs", {}),
        ("cigl", "snip", {}),
        ("regmixup", "sup-tickets", {}),
    ],
)
@pytest.mark.slow
def test_objectives_and_topologies_resume_bit_for_bit(data_root, tmp_path, objective, topology, options):
    outliers = "notmnist" if objective == "hod" else ""
    images = BenchmarkImages.open(data_root, "mnist", outliers=outliers)
    images = replace(images, splits=images.splits | {"train": images.splits["train"].take(np.arange(128))})
    recipe = make_recipe(
        images.benchmark, objective, options=options, topology=topology, outliers=outliers, net="lenet-norm",
        sparsity=0.8, epochs=5, batch_size=32, delta_t_steps=2,
    )  # fmt: skip

    class Stop(Exception):
        pass

    def stop(record):
        if record["epoch"] == 3:  # the checkpoint of the third epoch is the last one written
            raise Stop

    with pytest.raises(Stop):
        train_run(recipe, tmp_path / "stopped", images, checkpoint_seconds=0, on_epoch=stop)
    resumed = train_run(recipe, tmp_path / "stopped", images, checkpoint_seconds=0)
    uninterrupted = train_run(recipe, tmp_path / "uninterrupted", images)
    assert resumed["model_sha256"] == uninterrupted["model_sha256"]
    assert resumed["known"] == uninterrupted["known"]
    assert uninterrupted["density"] == pytest.approx(0.2, abs=0.01)


def test_a_finished_run_without_its_model_is_an_error(images, tmp_path):
    recipe = make_recipe(images.benchmark, "cross-entropy", topology="static", epochs=1, net="lenet-norm")
    train_run(recipe, tmp_path, images)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint, match="the model of this finished run is missing"):
        train_run(recipe, tmp_path, images)


def test_the_result_contains_flops(data_root, tmp_path):
    images = BenchmarkImages.open(data_root, "mnist")
    found = {}
    for topology, sparsity in (("dense", None), ("set", 0.9), ("rigl", 0.9), ("gmp", 0.9)):
        recipe = make_recipe(
            images.benchmark,
            "cross-entropy",
            net="lenet-norm",
            epochs=1,
            topology=topology,
            sparsity=sparsity,
            delta_t_steps=9,
            batch_size=16,
        )
        found[topology] = train_run(recipe, tmp_path / topology, images)["flops"]
    dense, of_set, rigl = (found[name] for name in ("dense", "set", "rigl"))
    assert dense["inference"] == dense["inference_dense"] == of_set["inference_dense"]
    assert dense["training"] == pytest.approx(256 * 3 * dense["inference"])
    assert of_set["training"] == pytest.approx(256 * 3 * of_set["inference"])
    assert of_set["inference"] < 0.6 * dense["inference"]
    f = rigl["inference"]
    amortised = (3 * f * 9 + 2 * f + rigl["inference_dense"]) / 10
    assert rigl["training"] == pytest.approx(256 * (0.7 * amortised + 0.3 * 3 * f))
    assert sum(rigl["layers"].values()) == pytest.approx(f)
    assert found["gmp"]["training"] is None  # its density changes


def test_a_run_records_whether_it_is_exact_and_restores_the_settings_of_cudnn(images, tmp_path, monkeypatch):
    recipe = make_recipe(images.benchmark, "cross-entropy", topology="static", epochs=1, net="lenet-norm")
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    for exact in (False, True):
        during = []
        result = train_run(
            recipe,
            tmp_path / str(exact),
            images,
            exact=exact,
            on_epoch=lambda _, during=during: during.append((cudnn.deterministic, cudnn.benchmark)),
        )
        assert result["exact"] is exact
        assert during == [(exact, not exact)]
        assert (cudnn.deterministic, cudnn.benchmark) == before
    # A run is not exact if any part of it was inexact.
    (tmp_path / "False" / "result.json").unlink()
    assert train_run(recipe, tmp_path / "False", images)["exact"] is False


def test_images_of_another_benchmark_are_rejected(images, tmp_path):
    with pytest.raises(ValueError, match="the recipe is for digits, but the images are those of mnist"):
        train_run(make_recipe("digits", topology="static"), tmp_path, images)

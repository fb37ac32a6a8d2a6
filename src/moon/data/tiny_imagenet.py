"""The validation images of Tiny ImageNet, as unknown images."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from moon.data.dataset import DataSet, Track
from moon.data.image_files import read_images
from moon.data.limits import read_bytes

# The classes that CIFAR-10 has too, by WordNet id, each with its class there. For a network that knows CIFAR-10, their
# images are not unknown.
CLASSES_OF_CIFAR10 = {
    "n01641577": "frog",  # bullfrog
    "n01644900": "frog",  # tailed frog
    "n01855672": "bird",  # goose
    "n02002724": "bird",  # black stork
    "n02056570": "bird",  # king penguin
    "n02058221": "bird",  # albatross
    "n02085620": "dog",  # Chihuahua
    "n02094433": "dog",  # Yorkshire terrier
    "n02099601": "dog",  # golden retriever
    "n02099712": "dog",  # Labrador retriever
    "n02106662": "dog",  # German shepherd
    "n02113799": "dog",  # standard poodle
    "n02123045": "cat",  # tabby
    "n02123394": "cat",  # Persian cat
    "n02124075": "cat",  # Egyptian cat
    "n02423022": "deer",  # gazelle
    "n02814533": "automobile",  # beach wagon
    "n03100240": "automobile",  # convertible
    "n03447447": "ship",  # gondola
    "n03662601": "ship",  # lifeboat
    "n03670208": "automobile",  # limousine
    "n03796401": "truck",  # moving van
    "n03977966": "automobile",  # police van
    "n04285008": "automobile",  # sports car
}


def read_tiny_imagenet(folder: Path, track: Track = iter, without: Container[str] = ()) -> DataSet:
    """Read the validation images at 32x32, without some classes; labels are ranks of WordNet ids among all classes."""
    annotations = folder / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    lines = [line.split("\t") for line in read_bytes(annotations).decode("utf-8").splitlines() if line.strip()]
    ids = sorted({line[1] for line in lines})
    images = [(annotations.parent / "images" / line[0], ids.index(line[1])) for line in lines if line[1] not in without]
    return read_images(images, 32, track, annotations)

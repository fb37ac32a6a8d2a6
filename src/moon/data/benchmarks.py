"""The table of benchmarks: a known set, its near and far unknown sets, and how images are prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moon.data.small import FAR, SUITE

# Of training images, besides crop and flip. They are named here because a recipe needs the names without torch.
AUGMENTATIONS = ("none", "cutout", "trivial", "trivial+cutout")
FEW = 5_000  # training images; with no more of them, images of your own get a preset of their own
Size = int | tuple[int, int]
"""Height and width of images in pixels; one number if they are square."""


def sides(size: Size) -> tuple[int, int]:
    """Return the height and the width."""
    return (size, size) if isinstance(size, int) else size


def size_of(height: int, width: int) -> Size:
    """Return the size of images; one number if they are square."""
    return height if height == width else (height, width)


@dataclass(frozen=True)
class Benchmark:
    """A known set, the unknown sets it is tested against, and how images are prepared.

    Args:
        name: The name of the benchmark, and of the known set unless `known` is given.
        near: Names of the near unknown sets.
        far: Names of the far unknown sets.
        num_known: Number of known classes, K.
        size: Height and width of the network's input in pixels, one number if it is square; unknown images of other
            sizes are resized.
        channels: Number of channels of the network's input; unknown images are converted.
        mean: Mean of the pixels per channel, in [0, 1].
        std: Standard deviation of the pixels per channel.
        net: The default network, a key of `moon.nets.NETS`.
        crop: Width of the border that training images are cropped from, in pixels.
        flip: Whether training images are flipped horizontally with probability 1/2.
        lists: The version of OpenOOD's image lists that define the sets; "" for sets under the data root.
        known: The name of the known set, if it is not that of the benchmark.
        resize: Length of the shorter side before the centre crop, for images that are streamed from disk; 0 if all
            images are held in memory.
        folder: The folder, relative to the data root, whose splits of class folders are the known set, for images that
            are streamed from disk; "" for other sets.
        validation: Unknown sets that the lists reserve for choosing options.
        resize_known: Whether images of the known set in another size are resized; otherwise they are an error. Images
            of unknown sets are always resized.
        preset: The preset that is used where neither an objective nor a preset is named; "" for none.

    Example:
        >>> from moon.data import BENCHMARKS
        >>> benchmark = BENCHMARKS["cifar10"]
        >>> benchmark.near, benchmark.num_known, benchmark.known_set
        (('cifar100', 'tin'), 10, 'cifar10')
    """

    name: str
    near: tuple[str, ...]
    far: tuple[str, ...]
    num_known: int
    size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    net: str
    crop: int = 4
    flip: bool = True
    lists: str = ""
    known: str = ""
    resize: int = 0
    folder: str = ""
    validation: tuple[str, ...] = ()
    resize_known: bool = False
    preset: str = ""

    @property
    def known_set(self) -> str:
        """The name of the known set."""
        return self.known or self.name

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The shape of an input of the network, (C, H, W)."""
        return self.channels, *sides(self.size)

    def streams(self, name: str) -> bool:
        """Whether a set is the known set and is streamed from `folder`."""
        return bool(self.folder) and name == self.known_set


def default_net(size: Size, channels: int) -> str:
    """The network for images of your own; large ones get a network that reduces the resolution first."""
    height, width = sides(size)
    if height * width >= 64 * 64:
        return "resnet18-imagenet"
    return "lenet-norm" if channels == 1 and min(height, width) >= 28 else "resnet18"  # LeNet accepts no smaller images


def default_preset(size: Size, images: int) -> str:
    """The preset for images of your own: that for few small images, or none."""
    height, width = sides(size)
    return "small" if images <= FEW and height * width < 64 * 64 else ""


_FAR_OF_CIFAR = ("mnist", "svhn", "dtd", "places")

_IN_MEMORY = (
    Benchmark(
        "digits", near=("letters",), far=("textures", "photos"), num_known=10, size=28, channels=1, mean=(0.5,),
        std=(0.5,), net="lenet-norm", crop=2,
        flip=False,  # a mirrored digit or letter is not the same digit or letter
    ),
    Benchmark(
        "mnist", near=("notmnist", "fashionmnist"), far=("dtd", "cifar10", "tin", "places"), num_known=10, size=28,
        channels=1, mean=(0.5,), std=(0.5,), net="lenet",
    ),
    Benchmark(
        "cifar10", near=("cifar100", "tin"), far=_FAR_OF_CIFAR, num_known=10, size=32, channels=3,
        mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), net="resnet18",
    ),
    Benchmark(
        "cifar100", near=("cifar10", "tin"), far=_FAR_OF_CIFAR, num_known=100, size=32, channels=3,
        mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761), net="resnet18",
    ),
)  # fmt: skip

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _IN_MEMORY}
"""All benchmarks by name. `find_benchmark` also finds those declared under a data root."""


def _with_lists(known: str, version: str, near: tuple[str, ...], far: tuple[str, ...], validation: str) -> Benchmark:
    """Make the benchmark that OpenOOD publishes as image lists; all images are RGB."""
    base = BENCHMARKS[known]
    return replace(
        base, name=f"{known}-{version}", near=near, far=far, lists=version, known=known, validation=(validation,),
        channels=3, mean=base.mean * (3 // len(base.mean)), std=base.std * (3 // len(base.std)),
    )  # fmt: skip


def _imagenet(version: str, near: tuple[str, ...], far: tuple[str, ...]) -> Benchmark:
    """Make the benchmark of ImageNet-1K, whose images are streamed from disk."""
    return Benchmark(
        f"imagenet-{version}", near, far, num_known=1000, size=224, channels=3, mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225), net="resnet50", lists=version, known="imagenet", resize=256,
        validation=("openimage_o",),
    )  # fmt: skip


_FAR = ("mnist", "svhn", "texture", "places365")
_FAR_OF_MNIST = ("texture", "cifar10", "tin", "places365")
BENCHMARKS |= {
    benchmark.name: benchmark
    for benchmark in (
        _with_lists("mnist", "v1", ("notmnist", "fashionmnist"), _FAR_OF_MNIST, "notmnist"),
        _with_lists("cifar10", "v1", ("cifar100", "tin"), _FAR, "cifar100"),
        _with_lists("cifar10", "v1.5", ("cifar100", "tin"), _FAR, "tin"),
        _with_lists("cifar100", "v1", ("cifar10", "tin"), _FAR, "tin"),
        _with_lists("cifar100", "v1.5", ("cifar10", "tin"), _FAR, "tin"),
        _imagenet("v1", ("species", "inaturalist", "openimage_o", "imagenet_o"), ("texture", "mnist")),
        _imagenet("v1.5", ("ssb_hard", "ninco"), ("inaturalist", "textures", "openimage_o")),
    )
}
BENCHMARKS |= {
    f"small-{name}": Benchmark(
        f"small-{name}", near=(f"small-{name}-near",),
        far=(*(f"small-{name}-{kind}" for kind in FAR), *(f"small-{other}" for other in small.others)),
        num_known=len(small.known), size=small.size, channels=small.channels, mean=small.mean, std=small.std,
        net="lenet-norm", flip=small.flip, preset="small",
    )
    for name, small in SUITE.items()
}  # fmt: skip

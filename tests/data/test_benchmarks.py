from moon.data import BENCHMARKS
from moon.nets import NETS


def test_the_table_is_consistent():
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert len(benchmark.mean) == len(benchmark.std) == benchmark.channels
        assert benchmark.net in NETS
        assert benchmark.near
        assert benchmark.far
        assert not {name, benchmark.known_set} & {*benchmark.near, *benchmark.far}
        assert not {*benchmark.near} & {*benchmark.far}


def test_benchmarks_with_lists_are_rgb_versions_of_the_same_known_set():
    benchmark = BENCHMARKS["mnist-v1"]
    assert (benchmark.known_set, benchmark.channels, benchmark.mean) == ("mnist", 3, (0.5, 0.5, 0.5))
    assert BENCHMARKS["cifar10-v1.5"].mean == BENCHMARKS["cifar10"].mean

"""The names of this package and where they are defined; type checkers and `__init__.py` read this file."""

from moon.data.batches import (
    Batches as Batches,
)
from moon.data.benchmarks import (
    BENCHMARKS as BENCHMARKS,
    Benchmark as Benchmark,
)
from moon.data.dataset import (
    DataSet as DataSet,
    as_dataset as as_dataset,
    check_name as check_name,
    load as load,
    path_of as path_of,
    save as save,
    split_off as split_off,
)
from moon.data.download import (
    SOURCES as SOURCES,
    download_set as download_set,
)
from moon.data.folders import (
    SplitFolders as SplitFolders,
    find_splits as find_splits,
)
from moon.data.formats import (
    read_cifar as read_cifar,
    read_idx as read_idx,
    read_svhn as read_svhn,
)
from moon.data.image_files import (
    read_folders as read_folders,
    read_list as read_list,
)
from moon.data.importing import (
    hold_out as hold_out,
    import_set as import_set,
    import_splits as import_splits,
)
from moon.data.loading import (
    evaluation_batches as evaluation_batches,
    training_batches as training_batches,
)
from moon.data.lookup import (
    all_benchmarks as all_benchmarks,
    find_benchmark as find_benchmark,
)
from moon.data.readers import (
    read_any as read_any,
)
from moon.data.resizing import (
    fit_to as fit_to,
)
from moon.data.saving import SavedSplit as SavedSplit
from moon.data.sets import (
    AnySet as AnySet,
    count_images as count_images,
    has_set as has_set,
    identities as identities,
    known_splits as known_splits,
    open_set as open_set,
    set_names as set_names,
)
from moon.data.streams import (
    ImageList as ImageList,
    StreamedBatches as StreamedBatches,
)
from moon.data.verify import (
    compare_with_published as compare_with_published,
    verify_sets as verify_sets,
)
from moon.errors import (
    DataError as DataError,
)

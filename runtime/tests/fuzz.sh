#!/bin/sh
# Fuzzes the loader, the kernels and the detectors under AddressSanitizer and UBSan: tests/fuzz.sh SECONDS [SEED].
# FUZZ_LAST=x.moon keeps the last file. Needs Python with NumPy (PYTHON) for the files to begin with.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" tests/seeds.py "$folder/seeds"
"${CC:-cc}" -std=c11 -O1 -g -ffp-contract=fast -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror \
    -fsanitize=address,undefined -fno-sanitize-recover=all -DMOON_FUZZ -o "$folder/fuzz" \
    tests/fuzz.c src/*.c -pthread -lm
"$folder/fuzz" "$1" "${2:-1}" "$folder"/seeds/*.moon

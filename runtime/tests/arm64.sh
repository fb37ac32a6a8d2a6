#!/bin/sh
# Compiles the library for ARM64 and tests it in an emulator, in float32 and float16. Needs aarch64-linux-gnu-gcc,
# qemu-aarch64 and Python with NumPy and pytest (PYTHON).
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" tests/cases.py "$folder"
aarch64-linux-gnu-gcc -std=c11 -O2 -ffp-contract=fast -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -static \
    -o "$folder/compare" tests/compare.c src/*.c -pthread -lm
cases=$(ls "$folder"/*.moon | sed 's/\.moon$//')
qemu-aarch64 -cpu cortex-a53 "$folder/compare" float32 1e-5 $cases
qemu-aarch64 -cpu max "$folder/compare" float16 5e-3 $cases

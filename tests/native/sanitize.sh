#!/usr/bin/env bash
# The native tests with instrumented kernels: tests/native/sanitize.sh thread|address,undefined [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=$1
shift
python=${PYTHON:-.venv/bin/python}
site=build/sanitize/$kind
"$python" -m pip install --quiet --no-deps --upgrade --target "$site" \
  --config-settings="cmake.define.FUSEBOARD_SANITIZE=$kind" --config-settings="build-dir=$site/build" .
case $kind in
  thread) runtime=libtsan.so ;;
  *) runtime=libasan.so ;;
esac
# An interpreter in C does not bring the C++ library, whose exceptions the sanitizers watch from the start.
# Output is captured above the file descriptors, where a sanitizer's report would be lost with the process.
# -S keeps the editable installation, with kernels of its own, out of the way. Addresses are not randomised because the
# thread sanitizer gives up on layouts that it does not know; the interpreter itself is no leak-free program.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
LD_PRELOAD="$(g++ -print-file-name=$runtime) $(g++ -print-file-name=libstdc++.so)" \
  TSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  OPENBLAS_NUM_THREADS=1 PYTHONPATH=$site:$packages \
  setarch -R "$python" -S -m pytest -p no:cacheprovider --capture=sys tests/native "$@"

#!/usr/bin/env bash
# All set-up: .venv with the locked packages, the project installed in it, the checkpoints, and dialogue.
# Safe to repeat: a finished step leaves a stamp and is skipped, a step that was cut short is done again.
#   METRONOME_BUILD=cpu|cuda   which build of vLLM (default: cuda where nvidia-smi lists a GPU, else cpu)
#   PYTHON=...                 which Python 3.11 to build .venv from
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3 python}; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 with venv was not found (tried: ${PYTHON:-python3.11 python3 python})." \
    "Install it (Debian: apt install python3.11 python3.11-venv) or name it: PYTHON=/path/to/python3.11 make setup"
}

pip_install() { # silent, unless it fails
  if ! .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-compile "$@" >.venv/pip.log 2>&1; then
    cat .venv/pip.log >&2
    return 1
  fi
}

hash_of() { sha256sum | cut -d' ' -f1; }

if nvidia-smi -L 2>/dev/null | grep -q GPU; then build=cuda; else build=cpu; fi
build=${METRONOME_BUILD:-$build}
[[ $build == cpu || $build == cuda ]] || die "METRONOME_BUILD must be cpu or cuda, not '$build'"
lock=requirements/$build.txt

mkdir -p .cache
exec 9>.cache/setup.lock
flock --nonblock 9 || { say "waiting for another set-up to end"; flock 9; }

# 1. Packages. A venv cannot be moved, so its place is in the key.
locked=.venv/setup.locked
key=$({ printf '%s\n' "$build" "$PWD"; cat "$lock" requirements/dev.txt; } | hash_of)
if [[ $(cat $locked 2>/dev/null) != "$key" ]] || ! .venv/bin/python -c '' 2>/dev/null; then
  python=$(find_python)
  # pip takes a package whose copying was cut short for an installed one, so a venv of ours that is unfinished or holds
  # another lock is emptied first, its stamp last. A .venv that someone else made has no stamp: it is kept and filled.
  if [[ -e $locked ]]; then
    say "emptying .venv: it is unfinished or was made for other locks"
    echo unfinished >$locked
    find .venv -mindepth 1 ! -path $locked -delete
  fi
  mkdir -p .venv
  echo unfinished >$locked
  say "making .venv with $python"
  "$python" -m venv .venv
  say "installing $(cat "$lock" requirements/dev.txt | grep -c '^[^#]*==') packages for vLLM on $build (1 to 2 minutes)"
  pip_install "$(grep ^pip== requirements/dev.txt)" # newer than what Python brings, and a quarter faster
  torch=$(grep ^torch== "$lock")
  if ! pip_install "$torch"; then # first and alone, so that the usual failure comes at once
    [[ $build == cuda ]] || say "$torch is not on PyPI. If pip did not find it, set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index." >&2
    die "could not install $torch"
  fi
  pip_install -r "$lock" -r requirements/dev.txt || die "could not install $lock (pip's own words are above)"
  # On all cores, as pip would on one. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, no import would ever
  # write it, and each process of an engine takes 24 s instead of 9 to import vLLM. One file of torch is for Python 3.12.
  .venv/bin/python -m compileall -q -j 0 .venv/lib/python3.11/site-packages >/dev/null || true
  echo "$key" >$locked
fi
# Before anything imports vLLM, and each time: a .venv that was made by hand needs it too.
[[ $build == cuda ]] || .venv/bin/python scripts/torchvision_on_cpu.py

# 2. The project, editable. vLLM finds the plugin by the entry point that this writes.
installed=.venv/setup.installed
key=$({ echo "$key"; cat pyproject.toml; } | hash_of)
if [[ $(cat $installed 2>/dev/null) != "$key" ]]; then
  say "installing the project"
  pip_install --no-build-isolation --editable . || die "could not install the project (pip's own words are above)"
  echo "$key" >$installed
fi

# 3. The models, and the dialogue that is scored.
.venv/bin/python scripts/build_omni.py & omni=$!
[[ -e .cache/text/timon-of-athens.txt ]] || .venv/bin/python scripts/fetch_text.py >/dev/null
.venv/bin/python scripts/build_smollm2.py
.venv/bin/python scripts/build_tiny.py
wait $omni

say "ready ($build)"

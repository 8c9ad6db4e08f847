#!/bin/sh
# Compile one small kernel for each target of the stand-in. Run where hipcc is: in the image of rocm-devel.
set -eu
cd "$(dirname "$0")"
for target in gfx942 gfx1030 gfx1100 gfx1151 gfx1201; do
  hipcc -O2 -Wno-unused-command-line-argument --cuda-device-only --no-gpu-bundle-output --offload-arch="$target" shift.hip -o "$target.hsaco"
done

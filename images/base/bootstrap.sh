#!/bin/sh
# Finish the root file system that mmdebstrap has made: $1 is its folder. Run by the driver as a --customize-hook.
#
# SUITES and COMPONENTS (environment) go into the image's sources. The host's mirror does not: the address is the one
# that the apt package gives as its example, which is Debian's own.
set -eu
cd "$1"
example=usr/share/doc/apt/examples/debian.sources
sources=etc/apt/sources.list.d/debian.sources
awk -v suites="$SUITES" -v components="$COMPONENTS" '
  /^#/ { next }
  /^$/ { if (seen) exit; next }
  /^Suites:/ { print "Suites: " suites; seen = 1; next }
  /^Components:/ { print "Components: " components; next }
  { print }' "$example" > "$sources"
for field in Types URIs Suites Components Signed-By; do
  if ! grep -q "^$field: " "$sources"; then
    echo "bootstrap.sh: the apt package's example of debian.sources has no $field" >&2
    exit 1
  fi
done
# what mmdebstrap took from this host, and what differs from run to run; base/files/ brings the two 90strix-finetune
rm -rf etc/apt/sources.list etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap \
  etc/hostname etc/resolv.conf etc/machine-id \
  var/cache/debconf/*-old var/lib/dpkg/*-old var/cache/ldconfig/aux-cache \
  var/log/apt var/log/dpkg.log var/log/alternatives.log var/log/bootstrap.log
# Toolbx makes root's home of it
mkdir -p usr/share/empty

#!/bin/sh
# Nothing of the building host may be left in an image, nor what only a build needs.
set -u
failed=0
fail() {
  echo "clean: $*" >&2
  failed=1
}

found=$(grep -rlE 'Check-Valid-Until|Acquire::.*[Pp]roxy|Verify-Peer' /etc/apt/apt.conf /etc/apt/apt.conf.d 2> /dev/null)
[ -z "$found" ] || fail "apt has a setting of the building host: $found"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
  [ -s "$file" ] || continue
  [ "$file" = /etc/apt/sources.list.d/debian.sources ] || fail "apt has another source than Debian's: $file"
done
# the only address that an image may name is the one in the apt package
example=/usr/share/doc/apt/examples/debian.sources
if [ -f "$example" ]; then
  sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | while read -r address; do
    grep -q "^URIs: *$address\$" "$example" || exit 1
  done || fail "debian.sources does not name Debian's own archive"
fi
for file in /etc/pip.conf /etc/uv/uv.toml /root/.config/pip /root/.config/uv /root/.pip /root/.netrc /root/.cache; do
  [ ! -e "$file" ] || fail "$file was left behind"
done
for folder in /mnt /media /tmp /var/lib/apt/lists /var/cache/apt /var/cache/strix-finetune; do
  left=$(find "$folder" -mindepth 1 -type f 2> /dev/null | head -n 1)
  case "$left" in
    "" | /var/cache/apt/archives/lock | /var/lib/apt/lists/lock) ;;
    *) fail "$left was left behind" ;;
  esac
done
! command -v uv > /dev/null || fail "uv is in the image"
for name in APT_CONFIG SSL_CERT_FILE REQUESTS_CA_BUNDLE UV_INDEX_URL PIP_INDEX_URL; do
  ! printenv "$name" > /dev/null || fail "the image sets $name"
done
left=$(find /usr /opt -xdev -name '*.a' -size +1000k 2> /dev/null | head -n 1)
[ -z "$left" ] || fail "a static library takes room: $left"

[ "$failed" = 0 ] || exit 1
echo "clean: Debian's own archive as the source, no cache, no setting of the building host"

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
# the only addresses that an image may name are those of the domain that the apt package names: its own archive and its
# updates for security, which older tools look for on a host of their own
example=/usr/share/doc/apt/examples/debian.sources
domains() { sed -n 's|^URIs: *[a-z]*://\([^/]*\.\)*\([^./]*\.[^./]*\)/.*|\2|p' "$1" | sort -u; }
if [ -f "$example" ] && [ "$(domains /etc/apt/sources.list.d/debian.sources)" != "$(domains "$example")" ]; then
  fail "debian.sources does not name Debian's own archive"
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
# not under /opt: AMD's wheels are whole, and a compiler is in one of them
# (libgcc.a is part of whatever the compiler of a run-time compiler links)
left=$(find /usr -xdev -name '*.a' ! -name libgcc.a -size +1000k 2> /dev/null | head -n 1)
[ -z "$left" ] || fail "a static library takes room: $left"

[ "$failed" = 0 ] || exit 1
echo "clean: Debian's own archive as the source, no cache, no setting of the building host"

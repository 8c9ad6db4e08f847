#!/bin/sh
# The contract of Toolbx: https://containertoolbx.org, src/cmd/create.go and src/cmd/initContainer.go. What cannot be
# seen from inside, labels, ENV, ENTRYPOINT and CMD, lies under $STRIX_SMOKE/image.
set -u
failed=0
fail() {
  echo "toolbx: $*" >&2
  failed=1
}
image=$STRIX_SMOKE/image

# create.go: `toolbox list` and `toolbox rmi` know images by the label; the entry point is Toolbx's own
grep -qx 'com.github.containers.toolbox=true' "$image/labels" || fail 'the label com.github.containers.toolbox="true" is missing'
[ ! -s "$image/entrypoint" ] || fail "the image has an ENTRYPOINT, which Toolbx replaces: $(head -n 1 "$image/entrypoint")"
[ -s "$image/cmd" ] || fail "the image has no CMD"

# run.go: every command goes through capsh and a login shell
[ "$(capsh --caps= -- --login -c 'echo works' 2>&1)" = works ] || fail "capsh --caps= -- --login -c … does not work"

# initContainer.go: programs whose absence is fatal
for program in bash sh useradd usermod passwd mount sudo; do
  command -v "$program" > /dev/null || fail "$program is missing"
done
getent group sudo > /dev/null || getent group wheel > /dev/null || fail "there is neither a group sudo nor a group wheel"
for folder in /etc/profile.d /etc/sudoers.d /usr/share/empty /home /run /tmp /mnt /media; do
  [ -d "$folder" ] || fail "the folder $folder is missing"
done
mount > /dev/null || fail "mount does not work"

# the user's home and uid come from the host
[ -z "$(ls -A /home)" ] || fail "/home is not empty: $(ls -A /home | head -n 3)"
! getent passwd 1000 > /dev/null || fail "uid 1000 is taken by $(getent passwd 1000 | cut -d: -f1)"

# the two ways in: ENV for `run`, profile.d for a login shell
case "$(sed -n 's/^PATH=//p' "$image/env"):" in
  /opt/venv/bin:*) ;;
  *) fail "PATH of the image does not begin with /opt/venv/bin but is $(sed -n 's/^PATH=//p' "$image/env")" ;;
esac
login() { env -i HOME=/root TERM=dumb bash --login -c "$1" 2>&1; }
[ "$(login 'printf %s "${PATH%%:*}"')" = /opt/venv/bin ] || fail "a login shell does not find /opt/venv/bin first"
for name in PYTHONNOUSERSITE LANG; do
  grep -q "^$name=" "$image/env" || fail "the image's ENV does not set $name"
done
# each variable of the image's ENV is a login shell's, too, and what profile.d exports is of the image's ENV
for name in $(sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' "$image/env") \
  $(sed -n 's/.*export \([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' /etc/profile.d/strix-finetune*.sh); do
  [ "$name" != PATH ] || continue
  inside=$(sed -n "s/^$name=//p" "$image/env")
  [ "$(login "printf %s \"\$$name\"")" = "$inside" ] \
    || fail "a login shell has another $name than the image's ENV ('$(login "printf %s \"\$$name\"")' and '$inside')"
done
[ -z "$(login true)" ] || fail "a login shell that is not interactive prints: $(login true | head -n 1)"

# variables that break Toolbx or hide a GPU wherever the image is used
for name in LD_PRELOAD HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_OVERRIDE_GFX_VERSION; do
  ! grep -q "^$name=" "$image/env" || fail "the image sets $name"
done

# what init-container does: a user of the host, root by sudo without a password
if [ "$(id -u)" = 0 ]; then
  useradd --no-create-home --home-dir /home/toolbx --shell /bin/bash --uid 1000 --groups sudo toolbx \
    || fail "useradd --uid 1000 --groups sudo does not work"
  usermod --append --groups sudo toolbx || fail "usermod does not work"
  passwd --delete root > /dev/null || fail "passwd --delete root does not work"
  [ "$(setpriv --reuid=1000 --regid=1000 --init-groups sudo --non-interactive id -u 2>&1)" = 0 ] \
    || fail "a user of the group sudo does not become root without a password"
  userdel toolbx 2> /dev/null
fi

[ "$failed" = 0 ] || exit 1
echo "ready for Toolbx: label, no ENTRYPOINT, capsh, sudo without a password, empty /home, login shell and ENV agree"

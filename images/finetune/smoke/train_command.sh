#!/bin/sh
# `train` works for any user, also one whom the image does not know, who has no home and whose folder holds files
# that are named like modules.
set -u
fail() {
  echo "train: $*" >&2
  exit 1
}

work=$(mktemp -d)
chmod 0755 "$work"
for name in strix_train click datasets torch; do
  echo 'raise SystemExit("a file of the working directory was imported")' > "$work/$name.py"
done
cd "$work" || exit 1
stranger() { setpriv --reuid=12345 --regid=12345 --clear-groups env HOME=/nonexistent "$@" 2>&1; }

help=$(stranger train --help) || fail "train --help ends with $?: $help"
case "$help" in
  *Usage:*train*) ;;
  *) fail "train --help does not show how it is used but: $help" ;;
esac
version=$(stranger train --version) || fail "train --version ends with $?: $version"
stranger /opt/venv/bin/python -P -c 'import strix_train' || fail "strix_train cannot be imported in the venv"
recipes=$(stranger train recipes) || fail "train recipes ends with $?: $recipes"
case "$recipes" in
  *demo*) ;;
  *) fail "train recipes does not list the demo but: $recipes" ;;
esac
stranger train no-such-recipe.yaml > /dev/null
code=$?
[ "$code" = 2 ] || fail "a recipe that does not exist ends with exit code $code and not with 2"
python=$(head -n 1 "$(command -v torchrun)" && sed -n 's/^exec \([^ ]*\).*/\1/p' "$(command -v torchrun)")
case "$python" in
  */opt/venv/bin/python*) ;;
  *) fail "torchrun starts another Python than the venv's" ;;
esac
[ -n "${STRIX_RECIPES:-}" ] && [ -d "$STRIX_RECIPES" ] || fail "STRIX_RECIPES names no folder"
rm -r "$work"
echo "$version: --help, --version and recipes work for uid 12345 without a home"

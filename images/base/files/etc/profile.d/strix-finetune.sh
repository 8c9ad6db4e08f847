# Login shells (Toolbx, ssh, su -) begin with a PATH of their own: give them what the image's ENV says.
case "$PATH:" in
  /opt/venv/bin:*) ;;
  *) export PATH="/opt/venv/bin:$PATH" ;;
esac
export LANG="${LANG:-C.UTF-8}"
export PYTHONNOUSERSITE=1

# A banner only where a person reads it: scripts parse what `toolbox run` prints.
case "$-" in
  *i*)
    if [ -t 1 ] && [ -n "${STRIX_RECIPES:-}" ]; then
      echo "strix-finetune: 'train --help' says what it does, recipes are in $STRIX_RECIPES"
      [ -z "${STRIX_CHANNEL_NOTICE:-}" ] || echo "$STRIX_CHANNEL_NOTICE"
    fi
    ;;
esac

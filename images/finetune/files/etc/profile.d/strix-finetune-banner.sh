# What a person sees who enters: the GPU, the versions, what to do next. Only shell builtins: it costs milliseconds.
case "$-" in
  *i*)
    if [ -t 1 ]; then
      strix_line=
      for strix_file in /sys/class/kfd/kfd/topology/nodes/*/properties; do
        [ -r "$strix_file" ] || continue
        while read -r strix_key strix_value; do
          [ "$strix_key" = gfx_target_version ] && [ "$strix_value" -gt 0 ] || continue
          # 110501 is gfx1151: minor and stepping are one hexadecimal digit each
          printf 'GPU: gfx%d%x%x\n' $((strix_value / 10000)) $((strix_value / 100 % 100)) $((strix_value % 100))
          strix_line=gpu
        done < "$strix_file"
      done
      if [ -z "$strix_line" ]; then
        echo "GPU: the kernel shows no AMD GPU for computing; training runs on the CPU"
      elif [ ! -w /dev/kfd ]; then
        echo "GPU: you may not open /dev/kfd; 'strix-finetune doctor' on the host says what is missing"
      fi
      strix_line=
      for strix_key in rocm_sdk_core torch transformers unsloth; do
        for strix_file in /opt/venv/lib/python3*/site-packages /usr/lib/python3/dist-packages; do
          for strix_file in "$strix_file/$strix_key"-*.dist-info; do
            [ -d "$strix_file" ] || continue
            strix_value=${strix_file##*/"$strix_key"-}
            strix_line="$strix_line, $strix_key ${strix_value%.dist-info}"
            break 2
          done
        done
      done
      [ -z "$strix_line" ] || echo "versions: ${strix_line#, }"
      echo "next: train recipes; train check RECIPE; train RECIPE"
      unset strix_line strix_file strix_key strix_value
    fi
    ;;
esac

#!/bin/sh
# The tools that ask a GPU start, and say that there is none where there is none.
set -u
fail() {
  echo "tools: $*" >&2
  exit 1
}

for tool in rocminfo rocm_agent_enumerator amd-smi rocm-smi; do
  command -v "$tool" > /dev/null || fail "$tool is missing"
done
agents=$(rocm_agent_enumerator 2>&1) || fail "rocm_agent_enumerator ends with $?: $agents"
help=$(amd-smi --help 2>&1)
case "$help" in
  *usage:*) ;;
  *"Drivers not loaded"*) [ ! -e /dev/kfd ] || fail "amd-smi does not see the driver: $help" ;;
  *) fail "amd-smi --help does not show how it is used but: $(echo "$help" | tail -n 3)" ;;
esac
help=$(rocm-smi --help 2>&1) || fail "rocm-smi --help ends with $?: $(echo "$help" | tail -n 3)"
if [ ! -e /dev/kfd ]; then
  told=$(rocminfo 2>&1) && fail "rocminfo ends well without a GPU: $told"
  case "$told" in
    *"NOT loaded"*) ;;
    *) fail "rocminfo does not say that there is no driver but: $told" ;;
  esac
  echo "rocminfo, rocm_agent_enumerator, amd-smi and rocm-smi start; there is no GPU here"
else
  rocminfo > /dev/null 2>&1 || fail "rocminfo fails although there is /dev/kfd"
  echo "rocminfo sees: $(echo "$agents" | tr '\n' ' ')"
fi
